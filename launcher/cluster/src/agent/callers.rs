//! Who waits at the door for an answer: their wish is done when it is known what was asked before, and they hear so when every other
//! node knows it too.
//!
//! **Invariant:** what was accepted outlives this head, on any node that can take over. Every caller is answered within
//! `HOLD_MAX` and `HEARD_WAIT_MAX`.

use super::{control::Command, dispatcher::Agent, error::AgentError};
use crate::rendezvous::NodeId;
use crossbeam_channel::Sender;
use enn_common::wire::command::{Answer, Request};
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

/// Longest wait of a caller for the nodes that an heir has not heard of.
const HOLD_MAX: Duration = Duration::from_secs(5);
/// Longest wait for the other nodes to say that they have heard. Both waits together are shorter than the door's.
const HEARD_WAIT_MAX: Duration = Duration::from_secs(3);

#[derive(Debug, Default)]
pub(super) struct Callers {
    waiting: Vec<(Command, Instant)>,
    obeyed: Vec<Obeyed>,
}

/// A wish that is being done.
#[derive(Debug)]
struct Obeyed {
    reply: Sender<Answer>,
    says: String,
    /// It is among so many.
    wishes: u64,
    /// Nodes that have not said that they know it, and the end of the wait for them.
    unheard: BTreeSet<NodeId>,
    until: Instant,
}

impl Obeyed {
    fn answer(self) {
        let mut says = self.says;
        if !self.unheard.is_empty() {
            let count = self.unheard.len();
            says.push_str(&format!(" ({count} other nodes have not said that they know; ask again if this one dies)"));
        }
        // A caller that did not wait is told nothing.
        let _gone = self.reply.send(Answer::Accepted { says });
    }
}

impl Callers {
    /// A node knows so many wishes.
    pub(super) fn heard(&mut self, node: NodeId, wishes: u64) {
        self.obeyed.iter_mut().filter(|wish| wish.wishes <= wishes).for_each(|wish| _ = wish.unheard.remove(&node));
    }

    /// A node will say nothing any more.
    pub(super) fn lost(&mut self, node: NodeId) {
        self.heard(node, u64::MAX);
    }

    /// When somebody must be answered.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let waiting = self.waiting.iter().map(|(_, until)| *until);
        waiting.chain(self.obeyed.iter().map(|wish| wish.until)).min()
    }

    /// Nobody is served any more. Who waits for a wish to be done hears from the door that it is not.
    pub(super) fn dismiss(&mut self) {
        self.waiting.clear();
        self.obeyed.drain(..).for_each(Obeyed::answer);
    }
}

impl Agent<'_> {
    /// Somebody is at the door.
    pub(super) fn called(&mut self) {
        let commands = self.sources.control.as_ref().map(|control| control.take()).unwrap_or_default();
        let until = Instant::now() + HOLD_MAX;
        self.callers.waiting.extend(commands.into_iter().map(|command| (command, until)));
    }

    /// Does what it is time for, and answers.
    pub(super) fn serve_callers(&mut self) -> Result<(), AgentError> {
        let now = Instant::now();
        for (command, until) in std::mem::take(&mut self.callers.waiting) {
            // A node that is not here yet may know of other wishes. A stop comes after all of them.
            let early = self.heir && self.sources.nodes.awaits() && command.request != (Request::Stop {});
            if early && now < until {
                self.callers.waiting.push((command, until));
            } else if early {
                let reason = "this node has just taken over and waits for the others; ask again".to_owned();
                let _gone = command.reply.send(Answer::Refused { reason });
            } else {
                self.serve(command)?;
            }
        }
        let heard = |wish: &Obeyed| wish.unheard.is_empty() || wish.until <= now;
        self.callers.obeyed.extract_if(.., |wish| heard(wish)).for_each(Obeyed::answer);
        Ok(())
    }

    fn serve(&mut self, Command { request, reply }: Command) -> Result<(), AgentError> {
        let before = self.wishes;
        match self.obey(request)? {
            Ok(says) => {
                let others = self.sources.nodes.others().into_iter().map(|(node, _)| node);
                let unheard = if self.has_begun() && self.wishes > before { others.collect() } else { BTreeSet::new() };
                let wishes = self.wishes;
                let until = Instant::now() + HEARD_WAIT_MAX;
                self.callers.obeyed.push(Obeyed { reply, says, wishes, unheard, until });
            }
            Err(reason) => _ = reply.send(Answer::Refused { reason }),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::{Receiver, bounded};

    fn obeyed(callers: &mut Callers, wishes: u64, nodes: &[u64]) -> Receiver<Answer> {
        let (reply, answer) = bounded(1);
        let unheard = nodes.iter().copied().map(NodeId).collect();
        callers.obeyed.push(Obeyed { reply, says: "done".into(), wishes, unheard, until: Instant::now() });
        answer
    }

    #[test]
    fn a_wish_is_known_when_every_node_that_is_left_knows_that_many() {
        let mut callers = Callers::default();
        let first = obeyed(&mut callers, 4, &[1, 2, 3]);
        let second = obeyed(&mut callers, 5, &[1, 2]);
        callers.heard(NodeId(1), 5);
        callers.heard(NodeId(2), 4);
        callers.lost(NodeId(3));
        let unheard: Vec<_> = callers.obeyed.iter().map(|wish| wish.unheard.len()).collect();
        assert_eq!(unheard, [0, 1]);
        assert!(callers.deadline().is_some());
        callers.dismiss();
        let says = |answer: Receiver<Answer>| match answer.recv().unwrap() {
            Answer::Accepted { says } | Answer::Refused { reason: says } => says,
        };
        assert_eq!(says(first), "done");
        let late = says(second);
        assert!(late.starts_with("done (1 other nodes have not said"), "{late}");
        assert!(callers.deadline().is_none());
    }

    #[test]
    fn who_still_waits_is_let_go_when_the_door_closes() {
        let mut callers = Callers::default();
        let (reply, answer) = bounded(1);
        callers.waiting.push((Command { request: Request::Pause {}, reply }, Instant::now()));
        callers.dismiss();
        assert!(answer.recv().is_err());
    }
}
