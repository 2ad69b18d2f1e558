//! Staging: foreign data → staged arrays.
//!
//! ```text
//! files ─source→ blocks of cleaned columns ─layout (rows | windows | arrays)→ samples on disk ─complete→ splits, categories,
//! statistics, report, meta.json
//! ```
//! **Invariants:** memory stays below 512 MB for any input; the result does not depend on the number of threads; a directory
//! under its final name is complete; nothing is repaired or left out without being counted in the report. Interrupted staging resumes
//! where it stopped (`resume_log`), unless rows were already removed or renumbered in place; then it starts over. Either way the bytes
//! are those of uninterrupted staging.

mod arrays;
mod batches;
mod bits;
#[cfg(test)]
mod bombs_tests;
mod bound;
mod brief;
mod calendar;
mod categories;
mod column_bounds;
mod complete;
mod coverage;
#[cfg(test)]
mod cuts_tests;
mod dictionary;
mod digest;
mod duplicates;
mod encode;
pub mod error;
mod f32_precision;
#[cfg(test)]
mod features_tests;
mod form;
#[cfg(test)]
mod formats_tests;
mod input;
mod input_bounds;
mod job;
mod label_cell;
mod labels;
mod left_out;
mod multi_hot;
mod order;
mod ordered_pool;
mod outlier_limits;
mod output;
mod projection;
mod purge;
mod redivide;
mod resume_log;
#[cfg(test)]
mod resume_tests;
mod rows;
mod scratch;
pub(crate) mod source;
#[cfg(test)]
mod sources_tests;
mod split;
mod stats;
mod table;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod timestamp;
mod windows;
#[cfg(test)]
mod words_tests;

pub use batches::{Batches, FileBatches, ample, text_bytes};
pub use bound::BoundError;
pub use column_bounds::InputBounds;
pub use complete::ROW_NAMES_MAX;
pub use coverage::{CategoryCoverage, UnseenCategories, check_classes};
pub use dictionary::same_words;
pub use encode::{EncodeError, Encoder};
pub use error::StageError;
pub use input::labels_of;
pub use input_bounds::input_bounds;
pub use job::Progress;
pub use label_cell::listed;
pub use labels::labels;
pub use order::require_order;
pub use purge::purge;
pub use redivide::redivide;
pub use source::is_data;
pub use source::means_missing;
pub(crate) use split::hash_order;
pub use timestamp::text as timestamp;

use enn_common::{
    config::data::{DataConfig, Layout},
    staged::{self, StagedMeta, known::FileIdentity},
};
use job::{Job, cores, source_rows};
use resume_log::ResumePolicy;
use std::path::PathBuf;

/// Maximum number of threads; more do not speed up one disk.
const THREADS_MAX: usize = 64;

/// Options of staging.
#[derive(Debug, Clone)]
pub struct StageOptions {
    /// Parent of the staged directories; created when absent.
    pub out: PathBuf,
    /// Number of threads; 0 uses one per core.
    pub threads: usize,
    /// Metadata of the training set, when the data are to be predicted. They determine categories, inputs, their order and the target's
    /// shape; all samples are test samples, targets may be absent, and no row is dropped.
    pub for_prediction: Option<StagedMeta>,
}

/// A staged directory.
#[derive(Debug, Clone)]
pub struct Staged {
    /// Path, `<out>/<digest>`.
    pub dir: PathBuf,
    pub meta: StagedMeta,
    /// Whether the directory existed already.
    pub reused: bool,
    /// Number of table rows that an interrupted attempt had read already.
    pub resumed_rows: u64,
}

/// Stages data, or finds them already staged: the directory's name is a digest of the files' contents and the configuration.
///
/// # Errors
/// One sentence with location, found, expected and hint, see `StageError`. After an error `out` contains nothing new, except an
/// unfinished directory that can be resumed after an error of the system.
pub fn stage(
    config: &DataConfig,
    options: &StageOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Staged, StageError> {
    stage_marked(config, options, ResumePolicy::default(), progress)
}

/// Stages with a policy for resume points.
fn stage_marked(
    config: &DataConfig,
    options: &StageOptions,
    resume_policy: ResumePolicy<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Staged, StageError> {
    if config.files.is_empty() {
        return Err(StageError::NoFiles);
    }
    let threads = if options.threads == 0 { cores() } else { options.threads }.min(THREADS_MAX);
    let training = options.for_prediction.as_ref();
    let before = identities(config)?;
    let digest = digest::key(config, training, &options.out, threads)?;
    let dir = options.out.join(&digest);
    if let Ok(found) = staged::Staged::open(&dir) {
        return Ok(Staged { meta: found.meta().clone(), dir, reused: true, resumed_rows: 0 });
    }
    let job = Job { config, out: &options.out, threads, training, digest, resume_policy };
    let made = make(&job, &before, progress);
    // After a full disk or a lost file system staging can be resumed; errors of the data are permanent.
    if made.as_ref().is_err_and(|error| !error.is_retryable()) {
        staged::writer::discard(job.out, &job.digest);
    }
    made
}

fn make(job: &Job<'_>, before: &[FileIdentity], progress: &mut dyn FnMut(Progress)) -> Result<Staged, StageError> {
    let config = job.config;
    let draft = match &config.layout {
        Layout::Rows(layout) => rows::draft(job, layout, progress)?,
        Layout::Windows(layout) => windows::draft(job, layout, progress)?,
        Layout::Arrays(layout) => arrays::draft(job, layout, progress)?,
    };
    if let Some((path, _)) =
        config.files.iter().zip(before).find(|(path, seen)| digest::identity(path).ok().as_ref() != Some(seen))
    {
        return Err(StageError::Changed { path: path.clone() });
    }
    let resumed_rows = draft.output.resumed_rows;
    let (dir, meta) = draft.complete(job)?;
    Ok(Staged { dir, meta, reused: false, resumed_rows })
}

fn identities(config: &DataConfig) -> Result<Vec<FileIdentity>, StageError> {
    let identity = |path: &PathBuf| digest::identity(path).map_err(|_| StageError::MissingFile { path: path.clone() });
    config.files.iter().map(identity).collect()
}
