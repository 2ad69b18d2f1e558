//! Why a run cannot be exported to MLflow.

use crate::JournalError;
use enn_common::fs::FileError;
use std::path::PathBuf;
use thiserror::Error;

#[derive(Debug, Error)]
pub enum MlflowError {
    #[error("{} has not begun: there is nothing to export", run.display())]
    NotBegun { run: PathBuf },
    #[error(
        "the experiment \"{name}\" was deleted in MLflow\n  hint: `mlflow experiments restore --experiment-id {id}`, or --experiment with another name"
    )]
    DeletedExperiment { name: String, id: String },
    #[error("{run} was deleted in MLflow\n  hint: `mlflow runs restore --run-id {id}`")]
    DeletedRun { run: String, id: String },
    #[error("{} is no store of MLflow: found a file, expected a directory", path.display())]
    NoStore { path: PathBuf },
    #[error(
        "experiments cannot be called \"{name}\": found {chars} characters, expected 1 to {limit} and no control character"
    )]
    ExperimentName { name: String, chars: usize, limit: usize },
    #[error(
        "{} is on another file system than the store, and cannot be linked\n  hint: --artifacts copy, or a store on the same file system",
        path.display()
    )]
    Elsewhere { path: PathBuf },
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    File(#[from] FileError),
}

impl MlflowError {
    /// Returns whether the command line is at fault.
    pub fn is_of_usage(&self) -> bool {
        !matches!(self, Self::Journal(_) | Self::File(_))
    }
}
