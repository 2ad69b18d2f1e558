//! report.html: the whole run in one file that needs nothing else.
//!
//! **Invariant:** self-contained (no network, no script), every text of the user is escaped, and a run that failed, was stopped
//! or is under way gets a report of what there is.

mod chart;
mod classes;
mod compared;
mod elements;
mod evaluated;
mod fit;
mod forecasts;
mod grid;
mod heatmap;
mod html;
mod inputs;
mod learning;
mod page;
pub mod predictions;
mod scale;
mod tables;
mod timeline;

pub use inputs::ReportInputs;
pub use predictions::{PredictionsError, TestPredictions};

use super::{compare::Comparison, error::JournalError, model::RunView};
use enn_common::{
    artifact::evaluation::Evaluation,
    fs::{FileError, atomic},
    staged::{Staged, StagedMeta},
};
use enn_data::baselines::{self, Baselines, Effort};
use std::path::{Path, PathBuf};
use thiserror::Error;

pub const FILE: &str = "report.html";

const CONFIG: &str = "run.json";

/// Why there is no report.
#[derive(Debug, Error)]
pub enum ReportError {
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    File(#[from] FileError),
}

impl ReportInputs {
    /// Reads the inputs from `run_dir`. Absent or damaged files are left out, with a note; only the journal is
    /// required. `baselines` are those of the staged data when they are known; without them the quick ones are
    /// computed.
    ///
    /// # Errors
    /// The journal is missing or cannot be read.
    pub fn read(run_dir: &Path, baselines: Option<Baselines>) -> Result<Self, JournalError> {
        let view = RunView::read(run_dir)?;
        let mut notes = Vec::new();
        let config = read_config(&run_dir.join(CONFIG), &mut notes);
        let staged = match view.staged.as_ref().map(|staged| Staged::open(&run_dir.join(&staged.dir))) {
            Some(Ok(staged)) => Some(staged),
            Some(Err(error)) => {
                notes.push(format!("Without plots of the test split: {error}"));
                None
            }
            None => None,
        };
        let predictions = staged.as_ref().and_then(|staged| match TestPredictions::read(run_dir, staged) {
            Ok(found) => found.filter(|_| staged.meta().has_targets),
            Err(error) => {
                notes.push(format!("Without plots of the test split: {error}"));
                None
            }
        });
        let baselines = baselines.or_else(|| {
            let staged = staged.as_ref().filter(|_| predictions.is_some())?;
            baselines::compute_of(staged, Effort::OnePass).ok()
        });
        Ok(Self { view, config, staged, baselines, predictions, notes })
    }
}

fn read_config(path: &Path, notes: &mut Vec<String>) -> Option<serde_json::Value> {
    let mut absent = |error: &dyn std::fmt::Display| {
        notes.push(format!("Without the configuration: {}: {error}", path.display()));
    };
    let bytes = std::fs::read(path).map_err(|error| absent(&error)).ok()?;
    serde_json::from_slice(&bytes).map_err(|error| absent(&error)).ok()
}

/// Writes report.html into `run_dir` and returns its path.
///
/// # Errors
/// The file cannot be written; an earlier report is then still whole.
pub fn write(run_dir: &Path, inputs: &ReportInputs) -> Result<PathBuf, ReportError> {
    let path = run_dir.join(FILE);
    atomic::write(&path, page::page(inputs).as_bytes())?;
    Ok(path)
}

/// Writes report.html of an evaluation into `dir` and returns its path.
///
/// # Errors
/// The file cannot be written.
pub fn write_evaluation(dir: &Path, evaluation: &Evaluation, meta: &StagedMeta) -> Result<PathBuf, ReportError> {
    let path = dir.join(FILE);
    atomic::write(&path, evaluated::page(evaluation, meta).as_bytes())?;
    Ok(path)
}

/// Writes the page of a comparison to `path`.
///
/// # Errors
/// The file cannot be written; an earlier one is then still whole.
pub fn write_comparison(path: &Path, comparison: &Comparison) -> Result<(), FileError> {
    atomic::write(path, compared::page(comparison).as_bytes())
}

/// Reads what `run_dir` holds and writes its report.
///
/// # Errors
/// The journal cannot be read or the report cannot be written.
pub fn build(run_dir: &Path) -> Result<PathBuf, ReportError> {
    write(run_dir, &ReportInputs::read(run_dir, None)?)
}

#[cfg(test)]
#[path = "../../../data/src/baselines/fixture.rs"]
mod fixture;
#[cfg(test)]
mod tests;
