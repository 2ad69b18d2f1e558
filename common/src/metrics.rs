//! Measures of a prediction against the truth, in the user's own units.

use crate::{artifact::classes::ClassFigures, finite};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Errors over the valid cells of one split. Units are the target's; `r2` has none. Where rows or cells have weights, all means
/// are weighted.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Metrics {
    #[serde(with = "finite")]
    pub mae: f64,
    /// Root of the mean squared error.
    #[serde(with = "finite")]
    pub rmse: f64,
    /// 1 − residual sum of squares / total sum of squares about the split's own mean over all valid cells.
    #[serde(with = "finite", default = "finite::nan")]
    pub r2: f64,
    /// Number of valid cells.
    #[serde(default)]
    pub n: u64,
    /// Mean absolute error in standard deviations of each cell over the training rows; `None` where the cells have one unit.
    #[serde(default)]
    pub scaled: Option<f64>,
    /// Mean of `train.loss` over the valid cells, in target standard deviations as in training. For classes the log-loss: the mean over
    /// rows of −ln of the probability of the class that is true.
    #[serde(with = "finite", default = "finite::nan")]
    pub loss: f64,
    /// Coverage of the outermost predicted quantiles; `None` for a loss without.
    #[serde(default)]
    pub interval: Option<Interval>,
    /// Share of the rows whose likeliest class is the target's; `None` without classes.
    #[serde(default)]
    pub accuracy: Option<f64>,
}

/// The figure by which forecasters are compared; the least is best.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    Mae,
    /// The error in standard deviations of each cell, as cells of several units cannot be added up.
    Scaled,
    /// Of the probabilities of classes.
    LogLoss,
}

impl Measure {
    pub fn name(self) -> &'static str {
        match self {
            Self::Mae => "MAE",
            Self::Scaled => "scaled MAE",
            Self::LogLoss => "log-loss",
        }
    }

    /// The unit of the figure, where that of the target is `units`.
    pub fn unit(self, units: &str) -> &str {
        if self == Self::Mae { units } else { "" }
    }
}

impl Metrics {
    /// By which of these figures forecasters are compared.
    pub fn measure(&self) -> Measure {
        match (self.accuracy, self.scaled) {
            (Some(_), _) => Measure::LogLoss,
            (None, Some(_)) => Measure::Scaled,
            (None, None) => Measure::Mae,
        }
    }

    pub fn judged(&self) -> f64 {
        match self.measure() {
            Measure::Mae => self.mae,
            Measure::Scaled => self.scaled.unwrap_or(f64::NAN),
            Measure::LogLoss => self.loss,
        }
    }
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

/// The answer of `enn metrics RUN --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunMetrics {
    /// Run identifier (directory name).
    pub run: String,
    pub step: u64,
    pub epoch: u64,
    /// `train`, `val`, `test` → metrics of the best model.
    pub split: BTreeMap<String, Metrics>,
    /// `cell_mean`, `persistence`, `ridge`; of classes `class_rates`, `logistic` → errors on the test split, or on the validation split while the model, or the data, has no test.
    pub baselines: BTreeMap<String, Metrics>,
    /// Split → what predictions of classes are worth there; empty where the target is no class.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub classes: BTreeMap<String, ClassFigures>,
    /// Unit of the target, empty when unknown.
    pub units: String,
    /// Training throughput, samples per second over all workers.
    #[serde(with = "finite")]
    pub samples_per_s: f64,
    pub restarts: u64,
    pub rounds: u64,
}
