//! Notifications of the rendezvous. Messages between nodes are in `common::wire::node`.

pub use enn_common::wire::node::{Member, NodeId, RoundEnd, RunEnd};

/// Result of a completed rendezvous: a round with a fixed world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RendezvousInfo {
    /// Number of the round, counted from 0.
    pub round: u64,
    /// Rank of this node: index into `members`.
    pub node_rank: u32,
    /// All nodes.
    pub members: Vec<Member>,
    /// Host and port of the store as this node reaches it: `MASTER_ADDR` and `MASTER_PORT` of the workers.
    pub master: (String, u16),
    /// Agent of the leader.
    pub leader: NodeId,
    /// All nodes by rank, on the leader; empty on a follower.
    pub nodes: Vec<NodeId>,
}

/// Notification for the owner loop of this node.
#[derive(Debug, Clone, PartialEq)]
pub enum Notification {
    /// The rendezvous is not complete; sent when the reason changes.
    Waiting(String),
    /// A round began; start the workers.
    Round(RendezvousInfo),
    /// The round ended: stop the workers, then `join` again.
    RoundEnded(RoundEnd),
    /// The run ended: stop all workers. This is the last notification.
    RunEnded(RunEnd),
    /// A node joined, for the journal of the leader.
    NodeJoined {
        /// Agent of the node.
        node: NodeId,
        host: String,
        /// Number of workers of the node.
        workers: u32,
    },
    /// A node was lost, for the journal of the leader.
    NodeLost {
        /// Agent of the node.
        node: NodeId,
        host: String,
        /// Reason, as a clause.
        reason: String,
    },
    /// Answer to `count_clients`: number of c10d clients that have connected to the store since the round began.
    StoreClients(u64),
    /// The leader cannot be reached any more, and why; a round or the end of the run follows.
    LeaderLost(String),
    /// A message of the program that the nodes run together: on the leader from a node, on a follower from the leader.
    Message {
        /// Sender; on a follower this node itself.
        from: NodeId,
        /// Content of the message.
        bytes: Vec<u8>,
    },
}
