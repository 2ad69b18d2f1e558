//! Measures of a prediction against the truth, in the user's own units.

use crate::finite;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Errors over the valid cells of one split. Units are the target's; `r2` has none. Where rows or cells have weights, all means
/// are weighted.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Metrics {
    /// Mean absolute error.
    #[serde(with = "finite")]
    pub mae: f64,
    /// Root of the mean squared error.
    #[serde(with = "finite")]
    pub rmse: f64,
    /// 1 − residual sum of squares / total sum of squares about the split's own mean over all valid cells.
    #[serde(with = "finite")]
    pub r2: f64,
    /// Number of valid cells.
    pub n: u64,
    /// Mean of `train.loss` over the valid cells, in target standard deviations as in training; for classes per row.
    #[serde(with = "finite", default = "finite::nan")]
    pub loss: f64,
    /// What the outermost predicted quantiles held; `None` for a loss without.
    #[serde(default)]
    pub interval: Option<Interval>,
    /// Share of the rows whose likeliest class is the target's; `None` without classes.
    #[serde(default)]
    pub accuracy: Option<f64>,
}

/// The interval between the lowest and the highest predicted quantile, over the valid cells.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Interval {
    /// Share of the targets that it should hold: the difference of the two levels.
    pub nominal: f64,
    /// Share of the targets that it held.
    #[serde(with = "finite")]
    pub coverage: f64,
    /// Mean width, target units.
    #[serde(with = "finite")]
    pub width: f64,
}

/// How far an error is above another, relative to it: 0 where both are the same, also where both are 0.
pub fn above(ours: f64, theirs: f64) -> f64 {
    if ours == theirs { 0.0 } else { ours / theirs - 1.0 }
}

/// Errors of one baseline. A baseline that cannot be computed is absent from the table, with the reason in the events.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Baseline {
    /// Mean absolute error, target units.
    #[serde(with = "finite")]
    pub mae: f64,
    /// Root of the mean squared error, target units.
    #[serde(with = "finite")]
    pub rmse: f64,
}

/// The answer of `enn metrics RUN --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunMetrics {
    /// Run identifier (directory name).
    pub run: String,
    /// Optimizer steps done.
    pub step: u64,
    /// Epochs done.
    pub epoch: u64,
    /// `train`, `val`, `test` → metrics of the best model.
    pub split: BTreeMap<String, Metrics>,
    /// `cell_mean`, `persistence`, `ridge` → errors on the test split, or on the validation split while the model, or the data, has no test.
    pub baselines: BTreeMap<String, Baseline>,
    /// Unit of the target, empty when unknown.
    pub units: String,
    /// Training throughput, samples per second over all workers.
    #[serde(with = "finite")]
    pub samples_per_s: f64,
    /// Worker restarts used.
    pub restarts: u64,
    /// Rounds the run took.
    pub rounds: u64,
}
