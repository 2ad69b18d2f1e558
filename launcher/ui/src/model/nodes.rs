//! The part of the fold for nodes: members, waits of the rendezvous, first failures, hangs.

use super::RunView;
use enn_common::event::NodeBrief;
use std::{collections::HashMap, path::PathBuf};

/// Maximum number of nodes, of which the first are kept; of failures and hangs the last are kept.
const NODES_MAX: usize = 16_384;
const FAILURES_MAX: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeView {
    pub host: String,
    pub workers: u32,
    /// Rank in the last round of which the node was part.
    pub rank: Option<u32>,
    pub state: NodeState,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeState {
    /// The node waits for a round.
    Joined,
    /// The node is part of the current round.
    InRound,
    /// The node was part of an earlier round and has not joined the next one.
    Out,
    /// The node left or was lost, for this reason.
    Lost(String),
}

#[derive(Debug, Clone, PartialEq)]
pub struct WaitView {
    /// Since when, seconds since the Unix epoch.
    pub since: f64,
    pub reason: String,
}

#[derive(Debug, Clone, PartialEq)]
pub struct HangView {
    /// Seconds since the Unix epoch.
    pub time: f64,
    pub round: u64,
    /// How long nothing had moved, seconds.
    pub seconds: f64,
    /// Directory of the workers' stacks.
    pub stacks: Option<PathBuf>,
}

impl RunView {
    /// Adds a node that joined. A lost or waiting node of the same host is that node.
    pub(super) fn node_joined(&mut self, host: &str, workers: u32) {
        let absent =
            |node: &&mut NodeView| node.host == host && matches!(node.state, NodeState::Lost(_) | NodeState::Out);
        match self.nodes.iter_mut().find(absent) {
            Some(node) => {
                node.workers = workers;
                node.state = NodeState::Joined;
            }
            None => self.add_node(NodeView { host: host.to_owned(), workers, rank: None, state: NodeState::Joined }),
        }
    }

    pub(super) fn add_node(&mut self, node: NodeView) {
        if self.nodes.len() < NODES_MAX {
            self.nodes.push(node);
        }
    }

    /// Orders the nodes: those of the round first, in its order, then those that wait, are out or are lost.
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

    /// Marks the nodes of a round that is over as out, until they join again.
    pub(super) fn dismiss_nodes(&mut self) {
        for node in self.nodes.iter_mut().filter(|node| node.state == NodeState::InRound) {
            node.state = NodeState::Out;
        }
    }
}

/// Appends to a list of which the last [`FAILURES_MAX`] are kept.
pub(super) fn push_bounded<T>(list: &mut Vec<T>, one: T) {
    if list.len() == FAILURES_MAX {
        list.remove(0);
    }
    list.push(one);
}
