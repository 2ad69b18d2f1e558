//! The part of the fold for training: data, model, steps, epochs, checkpoints, result.

use super::RunView;
use enn_common::{
    event::{EpochReport, EventKind, SourceShare},
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
    /// Whether the data were staged before.
    pub reused: bool,
    /// Duration, seconds.
    pub seconds: f64,
    pub report: CleaningReport,
}

/// The model as built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelView {
    /// Number of learned parameters.
    pub parameters: u64,
    /// Hash of the recorded program.
    pub program_hash: String,
    /// Samples per optimizer step over all workers.
    pub batch: u64,
    /// Optimizer steps in an epoch.
    pub steps_per_epoch: u64,
    /// Optimizer steps in the run.
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
    /// Validation MAE of the checkpoint's model.
    pub metric: Option<f64>,
    /// The reason for which the checkpoint was abandoned.
    pub error: Option<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct TrainedView {
    pub epoch: u64,
    pub step: u64,
    /// Whether early stopping ended it.
    pub stopped_early: bool,
    /// Errors of the best model per split, target units.
    pub split: BTreeMap<String, Metrics>,
    /// Training throughput, samples per second.
    pub samples_per_s: f64,
    /// Duration, seconds.
    pub seconds: f64,
}

impl RunView {
    pub(super) fn apply_staging(&mut self, what: &EventKind) {
        match what {
            EventKind::StageProgressed { rows, bytes, bytes_total } => {
                self.staging = Some((*rows, *bytes, *bytes_total))
            }
            EventKind::Staged {
                dir,
                rows,
                features,
                out_shape,
                split_rows,
                sources,
                units,
                reused,
                seconds,
                report,
                ..
            } => {
                self.staging = None;
                self.staged = Some(StagedView {
                    dir: dir.clone(),
                    rows: *rows,
                    features: *features,
                    out_shape: out_shape.clone(),
                    split_rows: *split_rows,
                    sources: sources.clone(),
                    units: units.clone(),
                    reused: *reused,
                    seconds: *seconds,
                    report: report.clone(),
                });
            }
            _ => {}
        }
    }

    pub(super) fn apply_training(&mut self, time: f64, what: &EventKind) {
        match what {
            EventKind::ModelBuilt { parameters, program_hash, batch, steps_per_epoch, steps_total } => {
                self.model = Some(ModelView {
                    parameters: *parameters,
                    program_hash: program_hash.clone(),
                    batch: *batch,
                    steps_per_epoch: *steps_per_epoch,
                    steps_total: *steps_total,
                });
            }
            EventKind::Stepped { epoch, step, loss, lr, samples_per_s, .. } => {
                self.pace.get_or_insert((time, *step));
                self.epochs.retain(|report| report.step <= *step);
                self.losses.push(*step, *loss);
                let samples_per_s = *samples_per_s;
                self.latest = Some(StepView { epoch: *epoch, step: *step, loss: *loss, lr: *lr, samples_per_s });
            }
            EventKind::EpochEnded(report) => {
                self.epochs.retain(|earlier| earlier.step < report.step);
                self.epochs.push((**report).clone());
            }
            EventKind::Trained { epoch, step, stopped_early, split, samples_per_s, seconds } => {
                self.classes.clear();
                self.trained = Some(TrainedView {
                    epoch: *epoch,
                    step: *step,
                    stopped_early: *stopped_early,
                    split: split.clone(),
                    samples_per_s: *samples_per_s,
                    seconds: *seconds,
                });
            }
            _ => {}
        }
    }

    pub(super) fn apply_checkpoint(&mut self, time: f64, what: &EventKind) {
        let checkpoint = match what {
            EventKind::CheckpointCommitted { step, bytes, seconds, metric, .. } => {
                CheckpointView { time, step: *step, bytes: *bytes, seconds: *seconds, metric: *metric, error: None }
            }
            EventKind::CheckpointFailed { step, error } | EventKind::CheckpointDamaged { step, error, .. } => {
                let error = Some(error.clone());
                CheckpointView { time, step: *step, bytes: 0, seconds: 0.0, metric: None, error }
            }
            _ => return,
        };
        self.checkpoints.push(checkpoint);
    }

    /// Unit of the target; empty when unknown.
    pub fn units(&self) -> &str {
        self.staged.as_ref().map_or("", |staged| &staged.units)
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
