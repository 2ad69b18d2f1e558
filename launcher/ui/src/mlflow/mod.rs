//! Runs in MLflow's file store, the directory that MLflow calls `mlruns`.
//!
//! ```text
//! <store>/<experiment id>/meta.yaml
//! <store>/<experiment id>/<run id>/meta.yaml   params/<name>   metrics/<name>   tags/<name>   artifacts/
//! ```
//! `names` makes names that MLflow accepts, `record` collects what a run has, and `store` writes the files. **Invariant:** a run has the
//! same id each time it is exported, so that it is updated; each file is old or new, never half written, and meta.yaml comes last. Tags
//! and notes that people added in MLflow stay.

mod error;
mod names;
mod record;
mod store;
#[cfg(test)]
mod tests;

pub use error::MlflowError;

use crate::compare::ComparedRun;
use record::MlflowRecord;
use std::path::{Path, PathBuf};

/// Directory that MLflow uses when none is set.
pub const FOLDER: &str = "mlruns";

/// How report and configuration of a run get into the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArtifactMode {
    Copy,
    /// A hard link to the file in the run's directory, which is replaced as a whole when it changes.
    Link,
    None,
}

impl ArtifactMode {
    pub const ALL: [(&'static str, Self); 3] = [("copy", Self::Copy), ("link", Self::Link), ("none", Self::None)];
}

/// Where and how runs are exported.
#[derive(Debug, Clone)]
pub struct MlflowOptions {
    /// The store, which is made when absent.
    pub store: PathBuf,
    /// Name of the experiment; `None`: the name in the configuration of each run.
    pub experiment: Option<String>,
    pub artifacts: ArtifactMode,
}

/// A run in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRun {
    pub run: String,
    pub experiment: String,
    pub experiment_id: String,
    pub run_id: String,
    pub path: PathBuf,
    /// Whether the run was not in the store before.
    pub is_new: bool,
}

/// Exports the run in `path`, or updates what was exported before.
///
/// # Errors
/// There is nothing to export, MLflow deleted the run or its experiment, or a file cannot be read or written.
pub fn export(path: &Path, options: &MlflowOptions) -> Result<StoredRun, MlflowError> {
    let nothing = || MlflowError::NotBegun { run: path.to_owned() };
    let run = ComparedRun::read(path)?.ok_or_else(nothing)?;
    if run.view.sessions.is_empty() {
        return Err(nothing());
    }
    let record = MlflowRecord::of(&run, options.experiment.as_deref())?;
    store::write(&record, options)
}
