//! What the rendezvous tells the group of this node, and what a round is. Plain values; what nodes tell each other of it
//! stands in `common::wire::node`.

pub use enn_common::wire::node::{Member, NodeId, RoundEnd, RunEnd};

/// A completed rendezvous: a fixed world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoundPlan {
    /// Number of the round, from 0.
    pub round: u64,
    /// Rank of this node: index into `members`.
    pub node_rank: u32,
    /// All nodes.
    pub members: Vec<Member>,
    /// Where the workers meet: host and port of the store as this node reaches it.
    pub master: (String, u16),
    /// Agent that hosts the rendezvous.
    pub host: NodeId,
    /// All nodes by rank, where this one hosts the rendezvous; else nobody.
    pub nodes: Vec<NodeId>,
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
        /// Its agent.
        node: NodeId,
        host: String,
        /// Workers it brings.
        workers: u32,
    },
    /// See above.
    NodeLost {
        /// Its agent.
        node: NodeId,
        host: String,
        /// How that is known.
        reason: String,
    },
    /// Answer to `count_clients`: so many c10d clients have come to the store since the round began.
    StoreClients(u64),
    /// The host cannot be reached any more, why; a round, or the end of the run, is told later.
    HostLost(String),
    /// A letter, for the program that the nodes run together. On the host: from that node; elsewhere from the host.
    Letter {
        /// Who wrote it; on a guest this node itself.
        from: NodeId,
        /// The letter.
        bytes: Vec<u8>,
    },
}
