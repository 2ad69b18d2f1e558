//! Which worker writes: its role, ranks and host.

/// The worker whose output is captured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerIdentity {
    pub role: String,
    /// Index among the workers of this node.
    pub local_rank: u32,
    pub rank: u32,
    pub host: String,
}
