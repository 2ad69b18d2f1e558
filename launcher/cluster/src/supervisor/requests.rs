//! Requests of users that wait: for nodes of which the leader has not heard yet, or for the nodes to know what was accepted.
//!
//! **Invariant:** a request is answered once, within `HOLD_MAX` and `REPLICATION_WAIT_MAX`. What was accepted outlives this leader, on
//! any node that can take over.

use super::{
    effect::{Effect, RequestId},
    input::Time,
};
use crate::rendezvous::NodeId;
use enn_common::wire::command::{Answer, Request};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// Longest wait of a request for the nodes of which a successor has not heard.
pub(super) const HOLD_MAX: Duration = Duration::from_secs(5);
/// Longest wait for the other nodes to acknowledge an accepted request. Both waits together are shorter than that of the control server.
pub(super) const REPLICATION_WAIT_MAX: Duration = Duration::from_secs(3);

/// Refusal of all that comes too late.
pub(super) const LEADS_NO_MORE: &str = "the run is ending, or another node leads it";

/// A request that was not looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HeldRequest {
    pub(super) id: RequestId,
    pub(super) request: Request,
    pub(super) until: Time,
}

/// A request that was accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AcceptedRequest {
    pub(super) says: String,
    /// Number of requests that the leader had handled with it.
    pub(super) requests: u64,
    /// Nodes that have not acknowledged it.
    pub(super) unheard: BTreeSet<NodeId>,
    /// End of the wait for them.
    pub(super) until: Time,
}

/// All requests that are not answered.
#[derive(Debug, Default)]
pub(super) struct PendingRequests {
    pub(super) held: Vec<HeldRequest>,
    pub(super) accepted: BTreeMap<RequestId, AcceptedRequest>,
}

impl PendingRequests {
    /// A node knows so many requests.
    pub(super) fn acknowledged(&mut self, node: NodeId, requests: u64) {
        for accepted in self.accepted.values_mut().filter(|accepted| accepted.requests <= requests) {
            accepted.unheard.remove(&node);
        }
    }

    /// A node is gone.
    pub(super) fn lose_node(&mut self, node: NodeId) {
        self.acknowledged(node, u64::MAX);
    }

    /// Returns the answers to the requests that all nodes know, or that have waited long enough.
    pub(super) fn answers(&mut self, now: Time) -> Vec<Effect> {
        if self.accepted.is_empty() {
            return Vec::new();
        }
        let is_due = |accepted: &AcceptedRequest| accepted.unheard.is_empty() || accepted.until <= now;
        let due = self.accepted.extract_if(.., |_, accepted| is_due(accepted));
        due.map(|(id, accepted)| Effect::Answer { id, answer: accepted.answer() }).collect()
    }

    /// Returns the answers to all that is left: no request is served any more.
    pub(super) fn close(&mut self) -> Vec<Effect> {
        let refused = |held: HeldRequest| rejection(held.id, LEADS_NO_MORE);
        let held = std::mem::take(&mut self.held).into_iter().map(refused);
        let accepted = std::mem::take(&mut self.accepted).into_iter();
        held.chain(accepted.map(|(id, accepted)| Effect::Answer { id, answer: accepted.answer() })).collect()
    }

    /// Returns when a user must be answered.
    pub(super) fn deadline(&self) -> Option<Time> {
        let held = self.held.iter().map(|held| held.until);
        held.chain(self.accepted.values().map(|accepted| accepted.until)).min()
    }
}

/// Returns the answer to a request that is refused.
pub(super) fn rejection(id: RequestId, reason: impl Into<String>) -> Effect {
    Effect::Answer { id, answer: Answer::Refused { reason: reason.into() } }
}

impl AcceptedRequest {
    fn answer(self) -> Answer {
        let Self { says, unheard, .. } = self;
        let unheard = unheard.len();
        if unheard == 0 {
            return Answer::Accepted { says };
        }
        let doubt = format!("{unheard} other nodes have not said that they know; ask again if this one dies");
        Answer::Accepted { says: format!("{says} ({doubt})") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_answered_when_every_node_that_is_left_knows_that_many() {
        let mut pending = PendingRequests::default();
        let mut accept = |id, requests, nodes: &[u64]| {
            let unheard = nodes.iter().copied().map(NodeId).collect();
            let until = Duration::from_secs(3);
            pending.accepted.insert(RequestId(id), AcceptedRequest { says: "done".into(), requests, unheard, until });
        };
        accept(1, 4, &[1, 2, 3]);
        accept(2, 5, &[1, 2]);
        pending.acknowledged(NodeId(1), 5);
        pending.acknowledged(NodeId(2), 4);
        pending.lose_node(NodeId(3));
        let answer = |says: &str| Answer::Accepted { says: says.into() };
        let answered = |id, says: &str| Effect::Answer { id: RequestId(id), answer: answer(says) };
        assert_eq!(pending.answers(Time::ZERO), [answered(1, "done")]);
        assert_eq!(pending.deadline(), Some(Duration::from_secs(3)));
        let late = pending.answers(Duration::from_secs(3));
        assert!(matches!(&late[..], [Effect::Answer { answer: Answer::Accepted { says }, .. }]
            if says.starts_with("done (1 other nodes have not said")));
        assert_eq!(pending.deadline(), None);
        pending.held.push(HeldRequest { id: RequestId(3), request: Request::Pause {}, until: Time::ZERO });
        assert!(matches!(&pending.close()[..], [Effect::Answer { id: RequestId(3), answer: Answer::Refused { .. } }]));
    }
}
