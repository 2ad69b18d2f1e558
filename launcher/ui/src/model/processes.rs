//! Rounds and their worker processes as a view has them.

use enn_common::{event::NodeBrief, id::Rank};

#[derive(Debug, Clone, Default, PartialEq)]
pub struct RoundView {
    pub round: u64,
    pub world_size: u32,
    /// Attempt, counted from 0.
    pub attempt: u32,
    /// Step of the checkpoint from which the round resumed.
    pub resume_step: Option<u64>,
    /// Start, seconds since the Unix epoch.
    pub started: f64,
    /// End, seconds since the Unix epoch.
    pub ended: Option<f64>,
    /// Cause of the round's failure, and whether another round followed.
    pub failure: Option<(String, bool)>,
    /// Reason for which workers that kept their state, or nodes, left the round.
    pub left: Option<String>,
    /// Restarts that remained after the round's failure.
    pub restarts_left: Option<u32>,
    /// Nodes in order of their rank; empty when the launcher is the only one.
    pub nodes: Vec<NodeBrief>,
    /// Address of the workers' store, host:port; empty when it was not recorded.
    pub master: String,
}

#[derive(Debug, Clone, PartialEq)]
pub struct WorkerView {
    pub round: u64,
    pub rank: u32,
    /// Index among the workers of its node.
    pub local_rank: u32,
    /// Host on which the worker runs; empty: the launcher's.
    pub host: String,
    pub pid: u32,
    /// Fork, seconds since the Unix epoch.
    pub started: f64,
    pub ready: Option<ReadyView>,
    pub exit: Option<ExitView>,
    pub error: Option<String>,
}

impl WorkerView {
    pub(super) fn started(time: f64, round: u64, rank: u32, local_rank: u32, pid: u32, host: &str) -> Self {
        let host = host.to_owned();
        Self { round, rank, local_rank, host, pid, started: time, ready: None, exit: None, error: None }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct ReadyView {
    /// Seconds since the Unix epoch.
    pub time: f64,
    /// Device, such as "cpu" or "cuda:0".
    pub device: String,
    /// Process-group backend, e.g. "gloo".
    pub backend: String,
    pub libtorch: String,
    /// Seconds from fork to ready.
    pub seconds: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExitView {
    /// Seconds since the Unix epoch.
    pub time: f64,
    pub code: Option<i32>,
    pub signal: Option<i32>,
    /// Seconds from death to notice.
    pub seconds_to_notice: f64,
}

/// Describes the reaction to a worker that ran out of memory.
pub(crate) fn out_of_memory(rank: Rank, split: u32) -> String {
    format!("worker {rank} ran out of memory; micro-batches are cut into {split} on all workers")
}

/// Describes the worker that the others wait for.
pub(crate) fn straggler(rank: Rank, pid: u32, slower_by: f64, evicted: bool) -> String {
    let then = if evicted { "; a spare takes its seat" } else { "" };
    format!("the others wait for worker {rank} (pid {pid}): its steps take {slower_by:.1} times as long{then}")
}

/// Describes a sick device, and what follows.
pub(crate) fn sick_device(device: &str, host: &str, reason: &str, left_out: bool) -> String {
    let place = if host.is_empty() { String::new() } else { format!(" of {host}") };
    if left_out {
        format!("{device}{place} is left out from now on: {reason}")
    } else {
        format!("{device}{place} is sick, but the run cannot do without it: {reason}")
    }
}
