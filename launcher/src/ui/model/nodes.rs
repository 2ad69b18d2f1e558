//! What the fold knows of nodes: who is there, what the rendezvous waits for, what failed first, what hung.

use super::RunView;
use enn_common::{
    event::{NodeBrief, What},
    failure::Failure,
};
use std::{collections::HashMap, path::PathBuf};

/// Nodes, failures and hangs that are remembered; of nodes the first, of the others the last.
const NODES_MAX: usize = 16_384;
const FAILURES_MAX: usize = 256;

/// One node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeView {
    pub host: String,
    /// Workers it runs.
    pub workers: u32,
    /// Rank in the last round it was part of.
    pub rank: Option<u32>,
    /// Where it stands.
    pub state: NodeState,
}

/// Where a node stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeState {
    /// It waits for a round.
    Joined,
    /// It is part of the current round.
    InRound,
    /// It was part of an earlier round and has not joined the next one.
    Out,
    /// It left or was lost, with the reason.
    Lost(String),
}

/// What the rendezvous waits for.
#[derive(Debug, Clone, PartialEq)]
pub struct WaitView {
    /// Since when, seconds since the Unix epoch.
    pub since: f64,
    /// What for.
    pub reason: String,
}

/// The first failure of a round.
#[derive(Debug, Clone, PartialEq)]
pub struct FailureView {
    /// When it was told, seconds since the Unix epoch.
    pub time: f64,
    pub failure: Failure,
}

#[derive(Debug, Clone, PartialEq)]
pub struct HangView {
    /// Seconds since the Unix epoch.
    pub time: f64,
    pub round: u64,
    /// How long nothing had moved, seconds.
    pub seconds: f64,
    /// What the workers were doing.
    pub stacks: Option<PathBuf>,
}

impl RunView {
    pub(super) fn apply_node(&mut self, time: f64, what: &What) {
        match what {
            What::Waiting { reason } => self.waiting = Some(WaitView { since: time, reason: reason.clone() }),
            What::NodeJoined { host, workers } => self.node_joined(host, *workers),
            What::NodeLost { host, reason } => {
                let lost = NodeState::Lost(reason.clone());
                let present = |node: &&mut NodeView| node.host == *host && !matches!(node.state, NodeState::Lost(_));
                match self.nodes.iter_mut().rev().find(present) {
                    Some(node) => node.state = lost,
                    None => self.add_node(NodeView { host: host.clone(), workers: 0, rank: None, state: lost }),
                }
            }
            What::FailureReported { failure } => {
                if self.failures.len() == FAILURES_MAX {
                    self.failures.remove(0);
                }
                self.failures.push(FailureView { time, failure: (**failure).clone() });
            }
            What::HangDetected { round, seconds, stacks } => {
                if self.hangs.len() == FAILURES_MAX {
                    self.hangs.remove(0);
                }
                let round = round.0;
                let seconds = *seconds;
                let stacks = stacks.clone();
                self.hangs.push(HangView { time, round, seconds, stacks });
            }
            _ => {}
        }
    }

    /// A host that comes again is the same node; two nodes of one host are two.
    fn node_joined(&mut self, host: &str, workers: u32) {
        let absent =
            |node: &&mut NodeView| node.host == host && matches!(node.state, NodeState::Lost(_) | NodeState::Out);
        match self.nodes.iter_mut().find(absent) {
            Some(node) => (node.workers, node.state) = (workers, NodeState::Joined),
            None => self.add_node(NodeView { host: host.to_owned(), workers, rank: None, state: NodeState::Joined }),
        }
    }

    fn add_node(&mut self, node: NodeView) {
        if self.nodes.len() < NODES_MAX {
            self.nodes.push(node);
        }
    }

    /// Nodes of a round come first, in its order; then those that wait, are out or are lost.
    pub(super) fn place_nodes(&mut self, briefs: &[NodeBrief]) {
        let mut known: HashMap<&str, usize> = HashMap::new();
        let mut placed = Vec::with_capacity(briefs.len());
        for (rank, brief) in briefs.iter().take(NODES_MAX).enumerate() {
            *known.entry(&brief.host).or_default() += 1;
            let host = brief.host.clone();
            let workers = brief.workers;
            let rank = u32::try_from(rank).ok();
            placed.push(NodeView { host, workers, rank, state: NodeState::InRound });
        }
        for mut node in self.nodes.drain(..) {
            match known.get_mut(node.host.as_str()) {
                Some(count) if *count > 0 => *count -= 1,
                _ => {
                    if node.state == NodeState::InRound {
                        node.state = NodeState::Out;
                    }
                    placed.push(node);
                }
            }
        }
        placed.truncate(NODES_MAX);
        self.nodes = placed;
    }

    /// When a round is over its nodes are out of it until they join again.
    pub(super) fn dismiss_nodes(&mut self) {
        for node in self.nodes.iter_mut().filter(|node| node.state == NodeState::InRound) {
            node.state = NodeState::Out;
        }
    }
}
