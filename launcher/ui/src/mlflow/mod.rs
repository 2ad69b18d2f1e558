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
mod options;
mod record;
mod store;
#[cfg(test)]
mod tests;

pub use error::MlflowError;
pub use options::{ArtifactMode, MlflowOptions, StoredRun};

use crate::compare::ComparedRun;
use record::MlflowRecord;
use std::path::Path;

/// Directory that MLflow uses when none is set.
pub const FOLDER: &str = "mlruns";

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
