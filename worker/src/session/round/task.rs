//! What a round is asked to do, and how it ended.

use enn_common::metrics::Metrics;
use std::{collections::BTreeMap, path::PathBuf};

/// What differs from round to round.
#[derive(Debug, Clone)]
pub struct RoundTask {
    /// Number of the round.
    pub round: u64,
    /// Committed checkpoint to go on from, when no rank has any state.
    pub resume: Option<PathBuf>,
    /// Name of this start of the workers; part of the names of unfinished checkpoints.
    pub attempt: String,
    /// Into so many each micro-batch is cut; the same on all ranks.
    pub split: u32,
    /// Ranks on this host, which have its memory together.
    pub local: u32,
}

impl Default for RoundTask {
    fn default() -> Self {
        Self { round: 0, resume: None, attempt: String::new(), split: 1, local: 1 }
    }
}

/// How a round ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Ended {
    /// Training is over.
    Finished(Outcome),
    /// All ranks left it at the same step, because they were asked to.
    Left,
}

/// How training ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Whether it was stopped on request, with a checkpoint.
    pub stopped: bool,
    /// Epochs done.
    pub epoch: u64,
    /// Optimizer steps done.
    pub step: u64,
    /// Metrics of the best weights by split; empty when stopped.
    pub split: BTreeMap<String, Metrics>,
}
