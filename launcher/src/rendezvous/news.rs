//! What the rendezvous tells the group of this node, and what a round is. Plain values; what nodes tell each other of it
//! stands in `common::wire::node`.

pub use enn_common::wire::node::{Member, RoundEnd, RunEnd};

/// A completed rendezvous: a fixed world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoundPlan {
    /// Number of the round, from 0.
    pub round: u64,
    /// Restarts of the run so far; membership changes are not counted.
    pub restarts: u32,
    /// Rank of this node: index into `members`.
    pub node_rank: u32,
    /// All nodes.
    pub members: Vec<Member>,
    /// Where the workers meet: host and port of the store as this node reaches it.
    pub master: (String, u16),
}

/// News for the group of this node.
#[derive(Debug, Clone, PartialEq)]
pub enum News {
    /// The rendezvous is not complete; told when the reason changes.
    Waiting(String),
    /// A round began; start the workers.
    Round(RoundPlan),
    /// The round ended: stop the workers, then `join` again.
    RoundEnded(RoundEnd),
    /// The run ended: stop what still runs; there is nothing more to come.
    RunEnded(RunEnd),
    /// A node joined or was lost, for the journal of the host.
    NodeJoined {
        /// Host.
        host: String,
        /// Workers it brings.
        workers: u32,
    },
    /// See above.
    NodeLost {
        /// Host.
        host: String,
        /// How that is known.
        reason: String,
    },
}
