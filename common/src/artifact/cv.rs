//! cv.json of a cross-validation: the rule that made the folds, how each of them ended, and what all of them say together.
//!
//! Errors are over valid cells of rows that the fold's model never saw, in the target's unit.

use crate::{
    finite,
    fs::{FileError, RelPath, atomic, regular},
    metrics::{self, Measure, Metrics},
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// Name in the directory of the cross-validation.
pub const FILE: &str = "cv.json";
/// Version that is written and read.
pub const VERSION: u32 = 1;
const RECORD_BYTES_MAX: u64 = 1 << 30;
pub const FORMAT: &str = "enn-cv";
/// Name of the trained model among those that are compared.
pub const MODEL: &str = "ENN";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CvRecord {
    pub format: String,
    pub version: u32,
    pub run: String,
    /// `RunConfig` of every fold.
    pub config: serde_json::Value,
    /// Unit of the target, empty when unknown.
    pub units: String,
    /// How rows came to their folds, in one sentence.
    pub rule: String,
    pub seed: u64,
    /// Staged directory of all rows.
    pub staged: PathBuf,
    /// Folds trained at the same time.
    pub jobs: usize,
    pub folds: Vec<FoldRecord>,
    /// Summary of the finished folds; best first.
    pub contenders: Vec<Contender>,
    /// Notes of the baselines, without repetitions.
    pub notes: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FoldRecord {
    /// Run directory, relative to the cross-validation's.
    pub run: RelPath,
    /// Staged directory: all rows, divided for this fold.
    pub staged: PathBuf,
    /// Samples that train, validate, test.
    pub rows: [u64; 3],
    pub state: FoldState,
    /// Duration of its training, seconds.
    pub seconds: f64,
    /// Errors on its test rows, by contender.
    pub errors: BTreeMap<String, Metrics>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum FoldState {
    /// The fold has not been trained, or not to the end.
    Pending,
    /// The fold was trained, and its test rows are predicted.
    Done,
    /// The training of the fold failed.
    Failed { cause: String },
}

/// The model or a baseline over all folds that are done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Contender {
    /// `MODEL`, or the baseline's name.
    pub name: String,
    pub folds: u64,
    /// Measure by which contenders are compared: the mean absolute error; in the cells' own spreads where they have no unit in common; of
    /// classes the log-loss.
    #[serde(default)]
    pub judged: Spread,
    pub mae: Spread,
    /// Root of the mean squared error.
    pub rmse: Spread,
    /// Share of the variance explained.
    pub r2: Spread,
}

/// Mean and sample standard deviation over folds.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Spread {
    #[serde(with = "finite")]
    pub mean: f64,
    /// Standard deviation (n − 1); 0 for one fold.
    #[serde(with = "finite")]
    pub std: f64,
}

impl Spread {
    /// Over the given values; `None` when there are none.
    pub fn of(values: &[f64]) -> Option<Self> {
        let n = values.len() as f64;
        if values.is_empty() {
            return None;
        }
        let mean = values.iter().sum::<f64>() / n;
        let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
        Some(Self { mean, std: (squares / (n - 1.0).max(1.0)).sqrt() })
    }
}

/// The model beside the best baseline.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    pub baseline: String,
    /// Relative difference of the mean error; negative: the model is better.
    pub difference: f64,
    /// Folds in which the model's error is lower than that baseline's.
    pub wins: usize,
    /// Folds in which both were judged.
    pub folds: usize,
}

/// Why cv.json cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CvError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{}: {source}", path.display())]
    Json { path: PathBuf, source: serde_json::Error },
    #[error("{}: found format {found}, this build reads {FORMAT} {VERSION}", path.display())]
    Foreign { path: PathBuf, found: String },
}

impl CvRecord {
    /// Reads the record of the directory `dir`.
    ///
    /// # Errors
    /// It is not there, damaged, or of another version.
    pub fn read(dir: &Path) -> Result<Self, CvError> {
        let path = dir.join(FILE);
        let text = regular::read(&path, RECORD_BYTES_MAX)?;
        let found: Self =
            serde_json::from_slice(&text).map_err(|source| CvError::Json { path: path.clone(), source })?;
        if (found.format.as_str(), found.version) != (FORMAT, VERSION) {
            return Err(CvError::Foreign { path, found: format!("{} {}", found.format, found.version) });
        }
        Ok(found)
    }

    /// Writes the record into the directory `dir`, whole or not at all.
    pub fn write(&self, dir: &Path) -> Result<(), CvError> {
        let path = dir.join(FILE);
        let text = serde_json::to_vec_pretty(self).map_err(|source| CvError::Json { path: path.clone(), source })?;
        Ok(atomic::write(&path, &text)?)
    }

    /// Puts the folds that are done together.
    pub fn sum_up(&mut self) {
        let mut all: BTreeMap<&String, u64> = BTreeMap::new();
        for name in self.done().flat_map(|fold| fold.errors.keys()) {
            *all.entry(name).or_default() += 1;
        }
        let of = |(name, folds): (&String, u64)| {
            Some(Contender {
                name: name.clone(),
                folds,
                judged: self.spread(name, Metrics::judged)?,
                mae: self.spread(name, |one| one.mae)?,
                rmse: self.spread(name, |one| one.rmse)?,
                r2: self.spread(name, |one| one.r2)?,
            })
        };
        let mut contenders: Vec<Contender> = all.into_iter().filter_map(of).collect();
        contenders.sort_by(|a, b| a.judged.mean.total_cmp(&b.judged.mean));
        self.contenders = contenders;
    }

    pub fn done(&self) -> impl Iterator<Item = &FoldRecord> {
        self.folds.iter().filter(|fold| fold.state == FoldState::Done)
    }

    pub fn measure(&self) -> Measure {
        self.done().find_map(|fold| Some(fold.errors.get(MODEL)?.measure())).unwrap_or(Measure::Mae)
    }

    /// A figure of a contender over the folds in which it was judged.
    pub fn spread(&self, name: &str, of: fn(&Metrics) -> f64) -> Option<Spread> {
        Spread::of(&self.done().filter_map(|fold| Some(of(fold.errors.get(name)?))).collect::<Vec<_>>())
    }

    /// The model beside the best baseline; `None` before both were judged.
    pub fn verdict(&self) -> Option<Verdict> {
        let model = self.contenders.iter().find(|one| one.name == MODEL)?;
        let best = self.contenders.iter().find(|one| one.name != MODEL && one.folds == model.folds)?;
        let pairs = self
            .done()
            .filter_map(|fold| Some((fold.errors.get(MODEL)?.judged(), fold.errors.get(&best.name)?.judged())));
        let pairs: Vec<(f64, f64)> = pairs.collect();
        Some(Verdict {
            baseline: best.name.clone(),
            difference: metrics::above(model.judged.mean, best.judged.mean),
            wins: pairs.iter().filter(|(model, baseline)| model < baseline).count(),
            folds: pairs.len(),
        })
    }
}
