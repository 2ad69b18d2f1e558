//! The errors of a fold: its model's forecasts of the rows it tests, beside baselines fitted to all rows outside it.
//!
//! Baselines get the rows that train and those that validate: the model sees both, too.

use crate::{
    baselines::{self, BaselineError, Effort, Trial},
    evaluation,
};
use enn_common::{
    artifact::cv::MODEL,
    config::train::CellWeights,
    fs::FileError,
    metrics::Metrics,
    staged::{Split, Staged, StagedError, npy::Element, reader::NpyMap},
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
    /// The baselines.
    #[error(transparent)]
    Baseline(#[from] BaselineError),
    /// Weights of other cells.
    #[error(transparent)]
    Weights(#[from] enn_common::config::weights::WeightsError),
    /// A file.
    #[error(transparent)]
    File(#[from] FileError),
    /// The table of all forecasts.
    #[error("{}: {source}", path.display())]
    Parquet {
        /// The table.
        path: PathBuf,
        /// Cause.
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

impl OutOfFold {
    /// Reads `pred.npy` and `rows.npy` of `dir` and compares them with the rows that `staged` tests.
    pub(super) fn read(dir: &Path, staged: &Staged) -> Result<Self, JudgeError> {
        let tested: Vec<usize> = staged.rows_of(Split::Test).collect();
        let (values, rows) = (NpyMap::open(&dir.join("pred.npy"))?, NpyMap::open(&dir.join("rows.npy"))?);
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
}

/// Errors by contender, rows and cells by their weights, and notes of the baselines.
///
/// # Errors
/// Data or forecasts that are not whole, or weights of other cells.
pub fn judge(
    staged: &Path,
    forecasts: &Path,
    weights: &CellWeights,
) -> Result<(BTreeMap<String, Metrics>, Vec<String>), JudgeError> {
    let staged = Staged::open(staged)?;
    let told = OutOfFold::read(forecasts, &staged)?;
    let trial = Trial::new(&staged, &told.rows).beside(&told.values);
    let weights = weights.of_grid(&staged.meta().out_shape)?;
    let weight = |cell: usize| weights.as_ref().map_or(1.0, |weights| weights[cell]);
    let outside: Vec<usize> = (0..staged.rows()).filter(|row| staged.split()[*row] != Split::Test as u8).collect();
    let (forecasters, mut notes) = baselines::fit_to(&staged, &outside, Effort::Full)?;
    let baseline = |one: &baselines::Forecaster| Some((one.name().to_owned(), trial.baseline(one)[0].over(weight)?));
    let mut all: BTreeMap<String, Metrics> = forecasters.iter().filter_map(baseline).collect();
    all.extend(trial.model()[0].over(weight).map(|metrics| (MODEL.to_owned(), metrics)));
    if trial.untold() > 0 {
        notes.push(evaluation::untold(trial.untold()));
    }
    Ok((all, notes))
}
