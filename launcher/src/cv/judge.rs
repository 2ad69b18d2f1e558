//! The errors of a fold: its model's forecasts of the rows it tests, beside baselines fitted to all rows outside it.
//!
//! Baselines get the rows that train and those that validate: the model sees both, too.

use crate::{
    baselines::{self, BaselineError, Effort, Scores, Trial},
    evaluation::{Held, Quantiles},
};
use enn_common::{
    artifact::cv::MODEL,
    fs::FileError,
    metrics::Metrics,
    staged::{Split, Staged, StagedError, StagedMeta, npy::Element, reader::NpyMap},
};
use parquet::errors::ParquetError;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// Why a fold cannot be judged.
#[derive(Debug, thiserror::Error)]
pub enum JudgeError {
    /// Staged data, or an array of forecasts.
    #[error(transparent)]
    Staged(#[from] StagedError),
    #[error(transparent)]
    Baseline(#[from] BaselineError),
    #[error(transparent)]
    File(#[from] FileError),
    /// The table of all forecasts.
    #[error("{}: {source}", path.display())]
    Parquet {
        /// The table.
        path: PathBuf,
        source: Box<ParquetError>,
    },
    /// Forecasts of other rows than the fold tests.
    #[error("{}: found forecasts of {found} rows, expected those of the fold's {expected} test rows", path.display())]
    Rows {
        /// Directory of the forecasts.
        path: PathBuf,
        /// Rows found.
        found: usize,
        /// Test rows.
        expected: usize,
    },
}

/// Forecasts of the rows a fold tests.
#[derive(Debug)]
pub(super) struct OutOfFold {
    /// Staged rows.
    pub(super) rows: Vec<usize>,
    /// Forecasts (rows, O).
    pub(super) values: Vec<f32>,
}

/// What was forecast for the rows of a fold, judged: the model first, then baselines.
#[derive(Debug)]
pub struct Judgement {
    /// Scores by group of rows.
    pub scores: Vec<(String, Vec<Scores>)>,
    /// What predicted quantiles held; `None` where none are.
    pub held: Option<Held>,
    /// Targets that count for nobody.
    pub untold: u64,
    /// What baselines say of themselves.
    pub notes: Vec<String>,
}

impl Judgement {
    /// Errors by contender over all cells, which count by their weights.
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
    /// Reads `pred.npy` and `rows.npy` of `dir` and compares them with the rows that `staged` tests.
    pub(super) fn read(dir: &Path, staged: &Staged) -> Result<Self, JudgeError> {
        let tested: Vec<usize> = staged.rows_of(Split::Test).collect();
        let values = NpyMap::open(&dir.join("pred.npy"))?;
        let rows = NpyMap::open(&dir.join("rows.npy"))?;
        let of_type = values.header().element == Element::F32 && rows.header().element == Element::I64;
        let (values, rows) = match of_type {
            true => (values.numbers::<f32>().unwrap_or_default(), rows.numbers::<i64>().unwrap_or_default()),
            false => (&[][..], &[][..]),
        };
        let same = rows.iter().copied().eq(tested.iter().map(|row| *row as i64));
        if !same || values.len() != tested.len() * staged.outputs() {
            return Err(JudgeError::Rows { path: dir.to_owned(), found: rows.len(), expected: tested.len() });
        }
        Ok(Self { rows: tested, values: values.to_vec() })
    }

    /// What the quantiles beside them in `dir` held; `None` where there are none.
    fn held(&self, dir: &Path, staged: &Staged, weights: Option<&[f64]>) -> Result<Option<Held>, JudgeError> {
        let path = dir.join("level.npy");
        if !path.exists() {
            return Ok(None);
        }
        let levels = NpyMap::open(&path)?;
        let levels = levels.numbers::<f64>().unwrap_or_default();
        let count = self.values.len() * levels.len();
        let values = NpyMap::open_as(&dir.join("levels.npy"), Element::F32, count as u64)?;
        let values = values.numbers().unwrap_or_default();
        let rows: Vec<(usize, usize)> = self.rows.iter().enumerate().map(|(place, row)| (*row, place)).collect();
        let quantiles = Quantiles { levels, values, rows: &rows, weights };
        Ok(Some(Held::new(levels).with(staged, quantiles)))
    }
}

/// Judges the forecasts of a fold. `group_of` is the group of every staged row, of so many.
///
/// # Errors
/// Data or forecasts that are not whole.
pub fn judge(
    staged: &Staged,
    forecasts: &Path,
    (group_of, groups): (&[usize], usize),
    weights: Option<&[f64]>,
) -> Result<Judgement, JudgeError> {
    let told = OutOfFold::read(forecasts, staged)?;
    let places: Vec<usize> = told.rows.iter().map(|row| group_of[*row]).collect();
    let trial = Trial::new(staged, &told.rows).beside(&told.values).in_parts(&places, groups);
    let outside = baselines::rows_of(staged, &[Split::Train, Split::Val]);
    let (forecasters, notes) = baselines::fit_to(staged, &outside, Effort::Full)?;
    let mut scores = vec![(MODEL.to_owned(), trial.model())];
    scores.extend(forecasters.iter().map(|one| (one.name().to_owned(), trial.baseline(one))));
    let held = told.held(forecasts, staged, weights)?;
    Ok(Judgement { scores, held, untold: trial.untold(), notes })
}
