//! The part of the fold for training: data, model, steps, epochs, checkpoints, result.

use super::RunView;
use enn_common::{
    event::{EpochReport, SourceShare},
    metrics::Metrics,
    staged::meta::CleaningReport,
};
use std::{collections::BTreeMap, path::PathBuf};

#[derive(Debug, Clone, PartialEq)]
pub struct StagedView {
    pub dir: PathBuf,
    pub rows: u64,
    pub features: u64,
    /// Shape of the output grid.
    pub out_shape: Vec<usize>,
    /// Samples per split: train, validation, test.
    pub split_rows: [u64; 3],
    /// Size of each source and the share with which it is drawn; empty when there is only one.
    pub sources: Vec<SourceShare>,
    /// Unit of the target; empty when unknown.
    pub units: String,
    pub reused: bool,
    /// Duration, seconds.
    pub seconds: f64,
    pub report: CleaningReport,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelView {
    pub parameters: u64,
    pub program_hash: String,
    pub steps_per_epoch: u64,
    pub steps_total: u64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepView {
    /// Epoch, counted from 1.
    pub epoch: u64,
    pub step: u64,
    /// Loss, standardised target space.
    pub loss: f64,
    pub lr: f64,
    /// Samples per second over all workers.
    pub samples_per_s: f64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct CheckpointView {
    /// Seconds since the Unix epoch.
    pub time: f64,
    pub step: u64,
    /// Size, bytes; 0 when it failed.
    pub bytes: u64,
    /// Duration, seconds; 0 when it failed.
    pub seconds: f64,
    /// The reason for which the checkpoint was abandoned.
    pub error: Option<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct TrainedView {
    pub epoch: u64,
    pub step: u64,
    pub stopped_early: bool,
    /// Errors of the best model per split, target units.
    pub split: BTreeMap<String, Metrics>,
    /// Training throughput, samples per second.
    pub samples_per_s: f64,
    /// Duration, seconds.
    pub seconds: f64,
}

impl RunView {
    /// Unit of the target; empty when unknown.
    pub fn units(&self) -> &str {
        self.staged.as_ref().map_or("", |staged| &staged.units)
    }

    pub(crate) fn last_checkpoint(&self) -> Option<&CheckpointView> {
        self.checkpoints.iter().rev().find(|checkpoint| checkpoint.error.is_none())
    }

    /// Returns the epoch with the best validation so far.
    pub fn best(&self) -> Option<&EpochReport> {
        self.epochs.iter().rev().find(|report| report.best)
    }

    /// Returns the seconds until the last step at the pace of this round; `None` before its second step.
    pub fn remaining_s(&self) -> Option<f64> {
        let (since, first) = self.pace?;
        let step = self.latest?.step;
        let total = self.model.as_ref()?.steps_total;
        (step > first).then(|| (self.now - since) / (step - first) as f64 * total.saturating_sub(step) as f64)
    }
}
