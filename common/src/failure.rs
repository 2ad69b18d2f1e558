//! The first failure of a round: what every node shows, and what the journal keeps.

use serde::{Deserialize, Serialize};

/// One worker's failure with everything that is known of it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Failure {
    pub round: u64,
    pub host: String,
    pub node_rank: u32,
    /// Index among the workers of its node.
    pub local_rank: u32,
    pub rank: u32,
    /// Role (`--role`).
    pub role: String,
    pub pid: u32,
    /// When it was noticed, seconds since the Unix epoch by the clock of its host.
    pub time: f64,
    pub code: Option<i32>,
    /// Signal number, when it was killed.
    pub signal: Option<i32>,
    /// Message of the worker: the exception of its error file, or what the launcher holds against it.
    pub message: Option<String>,
    /// The call stack that goes with `message`.
    pub traceback: Option<String>,
    /// The end of its standard error.
    pub stderr: String,
    /// Whether it failed before it was ready.
    pub early: bool,
    /// Phases of the other workers of the node, a line each.
    pub others: Vec<String>,
}
