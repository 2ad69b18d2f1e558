//! Errors of gathering predictions or a run.

use enn_common::{
    artifact::{chunk::ChunkError, seal::SealError},
    fs::{FileError, PathError, displace::DisplaceError, space::SpaceError},
    staged::StagedError,
};
use std::path::{Path, PathBuf};

/// An error with a message of one sentence: the place, what was found, what was expected and a hint.
#[derive(Debug, thiserror::Error)]
pub enum GatherError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("cannot list a file in the manifest: {0}")]
    Path(#[from] PathError),
    #[error(transparent)]
    Space(#[from] SpaceError),
    #[error(transparent)]
    Displace(#[from] DisplaceError),
    #[error(transparent)]
    Seal(#[from] SealError),
    #[error(transparent)]
    Chunk(#[from] ChunkError),
    #[error(transparent)]
    Staged(#[from] StagedError),
    #[error(
        "{} does not end like a format that is written; expected NAME.parquet, NAME.arrow or NAME.csv, or a name without extension for a directory of .npy files",
        path.display()
    )]
    Format { path: PathBuf },
    #[error("{} is there already; choose another name, or replace it with --replace", path.display())]
    Exists { path: PathBuf },
    #[error("{} holds the rows to predict, and would be lost; choose another name for the predictions", path.display())]
    Input { path: PathBuf },
    #[error("rows {start}..{end} of {rows} were not predicted; predict again: the chunks that are complete are kept")]
    Rows { start: u64, end: u64, rows: u64 },
    #[error("rows {start}..{end} are in two chunks; delete {} and predict again", partial.display())]
    Twice { start: u64, end: u64, partial: PathBuf },
    #[error("{}: {what} differs from the staged data; delete the chunk and predict again", path.display())]
    OtherData {
        path: PathBuf,
        /// The difference, such as "the shape of a prediction" or "the identity of a row".
        what: &'static str,
    },
    #[error("cannot write the stream of predictions: {0}")]
    Stream(#[source] arrow_schema::ArrowError),
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: Box<dyn std::error::Error + Send + Sync> },
}

impl GatherError {
    /// Wraps the error of a library that writes a format, as `.map_err(GatherError::write(path))`.
    pub(super) fn write<E: std::error::Error + Send + Sync + 'static>(path: &Path) -> impl Fn(E) -> Self + use<E> {
        let path = path.to_path_buf();
        move |source| Self::Write { path: path.clone(), source: Box::new(source) }
    }
}
