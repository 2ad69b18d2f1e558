//! Staging: foreign data → staged arrays.
//!
//! ```text
//! files ─source→ blocks of cleaned columns ─layout (rows | windows | arrays)→ samples on disk ─complete→ splits, categories,
//! statistics, report, meta.json
//! ```
//! **Invariants:** memory stays below 512 MB for any input; the result does not depend on the number of threads; a directory
//! under its final name is whole; nothing is repaired or left out without being counted in the report. Staging that was cut off goes
//! on where it was when it is asked for again (`keeper`), until rows are taken out or renumbered where they lie; after that it begins
//! anew. Either way the bytes are those of an undisturbed one.

mod arrays;
mod batches;
mod believed;
mod bits;
#[cfg(test)]
mod bombs_tests;
mod bound;
mod calendar;
mod categories;
mod coarse;
mod complete;
mod crew;
#[cfg(test)]
mod cuts_tests;
mod dictionary;
mod digest;
mod duplicates;
mod encode;
pub mod error;
#[cfg(test)]
mod features_tests;
mod figures;
mod form;
#[cfg(test)]
mod formats_tests;
mod implausible;
mod input;
mod keeper;
mod known;
mod labels;
mod left_out;
mod multi_hot;
mod order;
mod output;
mod purge;
mod redivide;
#[cfg(test)]
mod resume_tests;
mod rows;
mod scratch;
mod source;
#[cfg(test)]
mod sources_tests;
mod split;
mod table;
#[cfg(test)]
pub(crate) mod tests;
mod timestamp;
mod wanted;
mod windows;
#[cfg(test)]
mod words_tests;

pub use batches::{Batches, FileBatches, ample, text_bytes};
pub use believed::{Believed, believed};
pub use bound::BoundError;
pub(crate) use complete::ROW_NAMES_MAX;
pub(crate) use dictionary::same_words;
pub use encode::{EncodeError, Encoder};
pub use error::StageError;
pub use input::labels_of;
pub use known::{Acquaintance, Unseen, judge_classes};
pub use labels::labels;
pub use multi_hot::listed;
pub use order::require_order;
pub use purge::purge;
pub use redivide::redivide;
pub use source::is_data;
pub(crate) use source::means_missing;
pub(crate) use timestamp::text as timestamp;

use enn_common::{
    config::data::{DataConfig, Layout},
    staged::{self, StagedMeta, known::FileIdentity},
};
use keeper::Marking;
use std::path::{Path, PathBuf};

/// Threads used at most; more do not help one disk.
const THREADS_MAX: usize = 64;

/// Where and how to stage.
#[derive(Debug, Clone)]
pub struct StageOptions {
    /// Directory of staged directories; made when absent.
    pub out: PathBuf,
    /// Threads; 0 takes one per core.
    pub threads: usize,
    /// The training set's metadata when the data are to be predicted: categories, inputs, their order and the target's shape are
    /// taken from it, all samples are test samples, targets may be absent and no row is dropped.
    pub for_prediction: Option<StagedMeta>,
}

/// How far staging is. `bytes` counts the source files; a layout that reads them twice counts twice, in `bytes_total` too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Table rows read.
    pub rows: u64,
    /// Source bytes read.
    pub bytes: u64,
    /// Source bytes to read.
    pub bytes_total: u64,
}

/// A staged directory.
#[derive(Debug, Clone)]
pub struct Staged {
    /// `<out>/<digest>`.
    pub dir: PathBuf,
    pub meta: StagedMeta,
    /// Whether it was there already.
    pub reused: bool,
    /// Table rows that an attempt which was cut off had read already.
    pub resumed_rows: u64,
}

/// Samples of each source in turn, from those of each file; empty without sources.
fn source_rows(config: &DataConfig, file_rows: &[u64]) -> Vec<u64> {
    config.source_files().map(|(_, files)| file_rows[files].iter().sum()).collect()
}

/// What all parts of one staging are told.
#[derive(Debug)]
struct Job<'a> {
    config: &'a DataConfig,
    out: &'a Path,
    threads: usize,
    training: Option<&'a StagedMeta>,
    digest: String,
    marking: Marking<'a>,
}

/// Stages data, or finds them staged already: the directory's name is a digest of the files' contents and the configuration.
///
/// # Errors
/// One sentence with place, found, expected and hint, see `StageError`. After an error `out` holds nothing new, but for what can be
/// gone on with after an error of the disk.
pub fn stage(
    config: &DataConfig,
    options: &StageOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Staged, StageError> {
    stage_marked(config, options, Marking::default(), progress)
}

/// `stage` with marks of how far it is.
fn stage_marked(
    config: &DataConfig,
    options: &StageOptions,
    marking: Marking<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Staged, StageError> {
    if config.files.is_empty() {
        return Err(StageError::NoFiles);
    }
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = if options.threads == 0 { cores } else { options.threads }.min(THREADS_MAX);
    let training = options.for_prediction.as_ref();
    let before = identities(config)?;
    let digest = digest::key(config, training, &options.out, threads)?;
    let dir = options.out.join(&digest);
    if let Ok(found) = staged::Staged::open(&dir) {
        return Ok(Staged { meta: found.meta().clone(), dir, reused: true, resumed_rows: 0 });
    }
    let job = Job { config, out: &options.out, threads, training, digest, marking };
    let made = make(&job, &before, progress);
    // What a full disk or a lost file system cut off can be gone on with; what is wrong with the data remains wrong.
    if made.as_ref().is_err_and(|error| !error.is_of_the_disk()) {
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
