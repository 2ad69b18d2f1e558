//! Why baselines cannot be computed.

use enn_common::staged::StagedError;
use std::path::PathBuf;
use thiserror::Error;

/// Failures of the whole computation.
#[derive(Debug, Error)]
pub enum BaselineError {
    /// The staged directory is not whole.
    #[error(transparent)]
    Staged(#[from] StagedError),
    /// Prediction data.
    #[error("{} holds no targets, so there is nothing to judge a baseline by\n  hint: baselines need training data", path.display())]
    NoTargets { path: PathBuf },
    /// Nothing to fit to.
    #[error("{} holds no training rows\n  hint: lower [data.split] val and test", path.display())]
    NoTraining { path: PathBuf },
}

/// Why ridge regression is not offered; becomes a note, never a failure of the run.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum RidgeRefused {
    /// Too few rows to leave one out.
    #[error("{rows} training rows are fewer than the 3 it needs")]
    FewRows {
        /// Training rows.
        rows: usize,
    },
    /// No column varies.
    #[error("no input column varies over the training rows")]
    NoColumns,
    /// The coefficients would not fit.
    #[error("{columns} columns × {outputs} outputs are more than {limit} coefficients")]
    Large { columns: usize, outputs: usize, limit: usize },
    /// Too many inputs to tell their weights apart.
    #[error("{columns} inputs are more than {limit}")]
    ManyInputs { columns: usize, limit: usize },
    /// Forecasts of all rows would take too long.
    #[error("{rows} rows × {outputs} outputs leave room for too few training rows")]
    ManyForecasts { rows: usize, outputs: usize },
    /// No λ gave a positive definite system.
    #[error("its equations could not be solved for any λ")]
    Singular,
}
