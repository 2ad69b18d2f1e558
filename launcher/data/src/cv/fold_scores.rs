//! Errors of a fold: its model's forecasts of its test rows, beside baselines that are fitted to all other rows.
//!
//! Baselines are fitted to training and validation rows, because the model uses both, too.

use crate::{
    baselines::{self, BaselineError, Effort, Scores, Trial},
    evaluation::{IntervalCoverage, Quantiles},
};
use enn_common::{
    artifact::cv::MODEL,
    fs::FileError,
    metrics::Metrics,
    staged::{Split, Staged, StagedError, StagedMeta, npy::NpyElement, reader::NpyMap},
};
use parquet::errors::ParquetError;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

#[derive(Debug, thiserror::Error)]
pub enum FoldScoreError {
    #[error(transparent)]
    Staged(#[from] StagedError),
    #[error(transparent)]
    Baseline(#[from] BaselineError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{}: {source}", path.display())]
    Parquet { path: PathBuf, source: Box<ParquetError> },
    #[error("{}: found forecasts of {found} rows, expected those of the fold's {expected} test rows", path.display())]
    Rows { path: PathBuf, found: usize, expected: usize },
}

#[derive(Debug)]
pub(super) struct OutOfFold {
    pub(super) rows: Vec<usize>,
    /// Shape (rows, O).
    pub(super) values: Vec<f32>,
}

#[derive(Debug)]
pub struct FoldScores {
    /// Contenders with their scores by group of rows: the model first, then the baselines.
    pub scores: Vec<(String, Vec<Scores>)>,
    /// Coverage of the predicted quantiles; `None` where there are none.
    pub coverage: Option<IntervalCoverage>,
    pub without_forecast: u64,
    pub notes: Vec<String>,
}

impl FoldScores {
    /// Computes the errors of each contender over all cells; `weights` are the cells' weights.
    pub fn errors(&self, meta: &StagedMeta, weights: Option<&[f64]>) -> BTreeMap<String, Metrics> {
        let weight = |cell: usize| weights.map_or(1.0, |weights| weights[cell]);
        let of = |(name, groups): &(String, Vec<Scores>)| {
            let mut all = Scores::new(meta);
            groups.iter().for_each(|group| all.merge(group));
            Some((name.clone(), all.over(weight)?))
        };
        self.scores.iter().filter_map(of).collect()
    }
}

impl OutOfFold {
    /// Reads `pred.npy` and `rows.npy` in `dir`, and refuses forecasts of other rows than the test rows of `staged`.
    pub(super) fn read(dir: &Path, staged: &Staged) -> Result<Self, FoldScoreError> {
        let tested: Vec<usize> = staged.rows_of(Split::Test).collect();
        let values = NpyMap::open(&dir.join("pred.npy"))?;
        let rows = NpyMap::open(&dir.join("rows.npy"))?;
        let of_type = values.header().element == NpyElement::F32 && rows.header().element == NpyElement::I64;
        let (values, rows) = match of_type {
            true => (values.numbers::<f32>().unwrap_or_default(), rows.numbers::<i64>().unwrap_or_default()),
            false => (&[][..], &[][..]),
        };
        let same = rows.iter().copied().eq(tested.iter().map(|row| *row as i64));
        if !same || values.len() != tested.len() * staged.outputs() {
            return Err(FoldScoreError::Rows { path: dir.to_owned(), found: rows.len(), expected: tested.len() });
        }
        Ok(Self { rows: tested, values: values.to_vec() })
    }

    /// Computes the coverage of the quantiles in `dir`; `None` where there are none.
    fn coverage(
        &self,
        dir: &Path,
        staged: &Staged,
        weights: Option<&[f64]>,
    ) -> Result<Option<IntervalCoverage>, FoldScoreError> {
        let path = dir.join("level.npy");
        if !path.exists() {
            return Ok(None);
        }
        let levels = NpyMap::open(&path)?;
        let levels = levels.numbers::<f64>().unwrap_or_default();
        let count = self.values.len() * levels.len();
        let values = NpyMap::open_as(&dir.join("levels.npy"), NpyElement::F32, count as u64)?;
        let values = values.numbers().unwrap_or_default();
        let rows: Vec<(usize, usize)> = self.rows.iter().enumerate().map(|(place, row)| (*row, place)).collect();
        let quantiles = Quantiles { levels, values, rows: &rows, weights };
        Ok(Some(IntervalCoverage::new(levels).with(staged, quantiles)))
    }
}

/// Scores the forecasts in directory `forecast_dir`. `group_of` is the group of every staged row, below `groups`.
///
/// # Errors
/// Incomplete data or forecasts.
pub fn score_fold(
    staged: &Staged,
    forecast_dir: &Path,
    group_of: &[usize],
    groups: usize,
    weights: Option<&[f64]>,
) -> Result<FoldScores, FoldScoreError> {
    let forecasts = OutOfFold::read(forecast_dir, staged)?;
    let places: Vec<usize> = forecasts.rows.iter().map(|row| group_of[*row]).collect();
    let trial = Trial::new(staged, &forecasts.rows).beside(&forecasts.values).in_parts(&places, groups);
    let outside = baselines::rows_of(staged, &[Split::Train, Split::Val]);
    let (forecasters, notes) = baselines::fit_to(staged, &outside, Effort::Full)?;
    let mut scores = vec![(MODEL.to_owned(), trial.model())];
    scores.extend(forecasters.iter().map(|one| (one.name().to_owned(), trial.baseline(one))));
    let coverage = forecasts.coverage(forecast_dir, staged, weights)?;
    Ok(FoldScores { scores, coverage, without_forecast: trial.without_forecast(), notes })
}
