//! evaluation.json: how good a run's model is on data with targets, beside baselines fitted to the run's training rows.

pub use super::cv::MODEL;
use super::{classes::ClassFigures, cv::Spread, ranking::best_baseline};
use crate::{
    finite,
    metrics::{Measure, Metrics},
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, path::PathBuf};

/// Name in the directory of the evaluation.
pub const FILE: &str = "evaluation.json";
pub const VERSION: u32 = 1;
pub const FORMAT: &str = "enn-evaluation";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    pub format: String,
    pub version: u32,
    /// Run whose model was evaluated.
    pub run: String,
    pub step: u64,
    pub data: Vec<PathBuf>,
    /// Digest of the staged data.
    pub digest: String,
    /// Unit of the target, empty when unknown.
    pub units: String,
    pub rows: u64,
    /// Rows that all is about but `seen`: those that the run neither trained nor validated on; all of them where there are none, or where
    /// that is not known.
    #[serde(default)]
    pub judged: u64,
    /// Errors by what the run has done with the rows: "trained on", "validated on", "never seen"; empty where that is not known.
    #[serde(default)]
    pub seen: Vec<SeenPart>,
    /// Caveats that a reader of these errors must know.
    #[serde(default)]
    pub warning: Option<String>,
    /// Over all of these rows and cells.
    pub all: EvaluationPart,
    /// The model's spread over the targets', median over cells; `None` where no cell varies.
    pub reactivity: Option<f64>,
    /// By place on the last axis of the output grid.
    pub horizons: Vec<EvaluationPart>,
    /// Column that groups rows; empty for none.
    pub group: String,
    pub groups: Vec<EvaluationPart>,
    /// By output cell, row-major over the grid.
    pub cells: Vec<EvaluationPart>,
    /// Predicted quantiles; empty where none are.
    pub levels: Vec<QuantileCoverage>,
    /// Predicted intervals, widest first.
    pub intervals: Vec<QuantileInterval>,
    /// Figures of the predicted classes; `None` where the target is no class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classes: Option<ClassFigures>,
    /// Effect of shuffling each input, most important first; empty when it was not asked for.
    pub importance: Vec<Importance>,
    pub notes: Vec<String>,
}

/// Errors over the rows with which the run has done the same.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SeenPart {
    pub rows: u64,
    /// How the run used the rows, and the errors over them.
    #[serde(flatten)]
    pub part: EvaluationPart,
}

/// Errors over some rows and cells.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct EvaluationPart {
    pub name: String,
    /// By contender: `MODEL` and the baselines.
    pub errors: BTreeMap<String, Metrics>,
}

impl EvaluationPart {
    /// Returns the measure by which the model is compared.
    pub fn measure(&self) -> Option<Measure> {
        self.errors.get(MODEL).map(Metrics::measure)
    }

    pub fn model(&self) -> Option<f64> {
        self.errors.get(MODEL).map(Metrics::judged)
    }

    /// The best baseline and its error.
    pub fn best(&self) -> Option<(&str, f64)> {
        best_baseline(&self.errors).map(|best| (best.name, best.judged()))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct QuantileCoverage {
    /// Share of targets that should be at or below it.
    pub level: f64,
    pub below: f64,
}

/// A predicted interval between two quantiles.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct QuantileInterval {
    /// Level of the lower end.
    pub lower: f64,
    /// Level of the upper end.
    pub upper: f64,
    /// Share of targets inside.
    pub covered: f64,
    /// Mean width, target units.
    #[serde(with = "finite")]
    pub width: f64,
}

/// Effect of shuffling an input.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Importance {
    pub input: String,
    /// Rise of the error that forecasters are compared by, over shuffles.
    pub rise: Spread,
}
