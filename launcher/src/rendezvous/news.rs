//! What the rendezvous tells the group of this node, and what a round is. Plain values.

use enn_common::failure::Failure;
use std::{fmt, time::Duration};

/// One node of a round, in order of node rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Host name.
    pub host: String,
    /// Workers it runs.
    pub local_world: u32,
    /// Its workers' role.
    pub role: String,
}

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

/// Why a round ended before its work was done.
#[derive(Debug, Clone, PartialEq)]
pub enum RoundEnd {
    /// A worker failed, here or elsewhere.
    Failed(Box<Failure>),
    /// A node was lost or left.
    NodeLost {
        /// Host.
        host: String,
        /// How that is known.
        reason: String,
    },
    /// A node wants to join and there is room for it.
    NodeWaiting {
        /// Host.
        host: String,
    },
    /// No worker of any node made progress for so long.
    Hung {
        /// How long.
        idle: Duration,
    },
}

/// How the run ended for good.
#[derive(Debug, Clone, PartialEq)]
pub enum RunEnd {
    /// All workers of all nodes finished.
    Finished,
    /// The round ended and no other follows.
    Failed {
        /// Why it ended.
        end: RoundEnd,
        /// Why no other follows.
        reason: String,
    },
    /// Somebody asked the whole run to stop.
    Stopped {
        /// Host and signal.
        by: String,
    },
    /// Not enough nodes came in time; says who is missing.
    TimedOut {
        /// The last reason for waiting.
        reason: String,
    },
    /// The node that hosts the rendezvous is gone, and nobody may take over.
    HostLost {
        /// One sentence naming the endpoint and why nobody takes over.
        reason: String,
    },
    /// This node may not take part.
    Refused {
        /// One sentence: what does not fit, and a hint.
        reason: String,
    },
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

impl fmt::Display for RoundEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(failure) => write!(f, "rank {} on {} failed", failure.rank, failure.host),
            Self::NodeLost { host, reason } => write!(f, "node {host} was lost: {reason}"),
            Self::NodeWaiting { host } => write!(f, "node {host} wants to join"),
            Self::Hung { idle } => write!(f, "no worker made progress for {} s", idle.as_secs()),
        }
    }
}
