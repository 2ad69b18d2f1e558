//! What a round is asked to do, and how it ended.

use enn_common::metrics::Metrics;
use std::{collections::BTreeMap, path::PathBuf};

#[derive(Debug, Clone)]
pub struct RoundTask {
    pub round: u64,
    /// Committed checkpoint to go on from, when no rank has any state.
    pub resume: Option<PathBuf>,
    /// Name of this start of the workers; part of the names of unfinished checkpoints.
    pub attempt: String,
    /// Number of parts into which each micro-batch is cut; the same on all ranks.
    pub split: u32,
    /// Ranks on this host, which have its memory together.
    pub local: u32,
    /// Save the state as it is, without a further step, and end.
    pub saves_only: bool,
}

impl Default for RoundTask {
    fn default() -> Self {
        Self { round: 0, resume: None, attempt: String::new(), split: 1, local: 1, saves_only: false }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum Ended {
    Finished(Outcome),
    /// All ranks left it at the same step, because they were asked to.
    Left,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Whether it was stopped on request, with a checkpoint.
    pub stopped: bool,
    pub epoch: u64,
    pub step: u64,
    /// Metrics of the best weights by split; empty when stopped.
    pub split: BTreeMap<String, Metrics>,
}
