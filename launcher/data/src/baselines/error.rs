//! Errors of baselines.

use enn_common::staged::StagedError;
use std::path::PathBuf;
use thiserror::Error;

#[derive(Debug, Error)]
pub enum BaselineError {
    #[error(transparent)]
    Staged(#[from] StagedError),
    /// The data were staged for prediction.
    #[error("{} holds no targets, so there is nothing to judge a baseline by\n  hint: baselines need training data", path.display())]
    NoTargets { path: PathBuf },
    #[error("{} holds no training rows\n  hint: lower [data.split] val and test", path.display())]
    NoTraining { path: PathBuf },
}

/// Reasons why a regression is left out of the baselines; they become notes and never fail the run.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum FitError {
    #[error("{rows} training rows are fewer than the 3 it needs")]
    FewRows { rows: usize },
    #[error("no input column varies over the training rows")]
    NoColumns,
    #[error("{columns} columns × {outputs} outputs are more than {limit} coefficients")]
    Large { columns: usize, outputs: usize, limit: usize },
    #[error("{columns} inputs are more than {limit}")]
    ManyInputs { columns: usize, limit: usize },
    #[error("{rows} rows × {outputs} outputs leave room for too few training rows")]
    ManyForecasts { rows: usize, outputs: usize },
    #[error("its equations could not be solved for any λ")]
    Singular,
}
