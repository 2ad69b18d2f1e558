//! How a training ended.

use crate::Error;
use enn_cluster::supervise::{RunEnd, StopSignal};
use enn_common::{exit::ExitCode, metrics::Metrics};
use std::{collections::BTreeMap, path::PathBuf};

#[derive(Debug, Clone, PartialEq)]
pub struct TrainedRun {
    pub dir: PathBuf,
    pub ended: RunEnd,
    /// Errors of the best model for each split, in the target's unit; `None` when stopped.
    pub metrics: Option<BTreeMap<String, Metrics>>,
    pub checkpoint: Option<PathBuf>,
    pub restarts: u32,
    pub rounds: u64,
    /// Whether this node led the run; the metrics are known to the leader only.
    pub led: bool,
}

impl TrainedRun {
    /// Makes the result of a training led by this node that did nothing.
    pub(super) fn new(dir: PathBuf, ended: RunEnd) -> Self {
        Self { dir, ended, metrics: None, checkpoint: None, restarts: 0, rounds: 0, led: true }
    }
}

/// Returns the cause of a failure as one sentence; `None` when nothing failed.
pub(super) fn cause(ended: Result<&RunEnd, &Error>) -> Option<String> {
    match ended {
        Ok(RunEnd::Failed { cause } | RunEnd::CheckpointsUnusable { error: cause, .. }) => Some(cause.clone()),
        Ok(_) => None,
        Err(error) => Some(error.to_string()),
    }
}

/// Returns the exit code for the given end of a run.
pub fn exit_code(ended: &RunEnd) -> ExitCode {
    match ended {
        // The run goes on elsewhere, or is done.
        RunEnd::Finished | RunEnd::HandedOff => ExitCode::Success,
        RunEnd::Stopped(StopSignal::Interrupt) => ExitCode::Interrupted,
        RunEnd::Stopped(StopSignal::Terminate | StopSignal::TimeLimit) => ExitCode::Terminated,
        RunEnd::Failed { .. } => ExitCode::WorkerFailed,
        RunEnd::CheckpointsUnusable { none_whole: true, .. } => ExitCode::Artifact,
        RunEnd::CheckpointsUnusable { none_whole: false, .. } => ExitCode::Machine,
    }
}
