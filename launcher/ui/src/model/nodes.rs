//! Nodes as a view has them: members, waits of the rendezvous, first failures, hangs.

use std::path::PathBuf;

/// Maximum number of failures and of hangs, of which the last are kept.
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

/// Appends to a list of which the last [`FAILURES_MAX`] are kept.
pub(super) fn push_bounded<T>(list: &mut Vec<T>, one: T) {
    if list.len() == FAILURES_MAX {
        list.remove(0);
    }
    list.push(one);
}
