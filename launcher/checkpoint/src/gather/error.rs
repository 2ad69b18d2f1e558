//! Errors of gathering predictions or a run.

use enn_common::{
    artifact::{chunk::ChunkError, seal::SealError},
    fs::{FileError, PathError, displace::DisplaceError, space::SpaceError},
    staged::StagedError,
};
use std::path::PathBuf;

/// An error with a message of one sentence: the place, what was found, what was expected and a hint.
#[derive(Debug, thiserror::Error)]
pub enum GatherError {
    #[error(transparent)]
    File(#[from] FileError),
    /// The name of a file that cannot be listed in a manifest.
    #[error("cannot list a file in the manifest: {0}")]
    Path(#[from] PathError),
    #[error(transparent)]
    Space(#[from] SpaceError),
    /// The existing output may not be replaced.
    #[error(transparent)]
    Displace(#[from] DisplaceError),
    #[error(transparent)]
    Seal(#[from] SealError),
    #[error(transparent)]
    Chunk(#[from] ChunkError),
    #[error(transparent)]
    Staged(#[from] StagedError),
    /// The output's name has no known extension.
    #[error(
        "{} does not end like a format that is written; expected NAME.parquet, NAME.arrow or NAME.csv, or a name without extension for a directory of .npy files",
        path.display()
    )]
    Format { path: PathBuf },
    /// The output is there already.
    #[error("{} is there already; choose another name, or replace it with --replace", path.display())]
    Exists { path: PathBuf },
    /// The output would overwrite the rows to predict.
    #[error("{} holds the rows to predict, and would be lost; choose another name for the predictions", path.display())]
    Input { path: PathBuf },
    /// Rows without a prediction.
    #[error("rows {start}..{end} of {rows} were not predicted; predict again: the chunks that are complete are kept")]
    Rows {
        /// The first row without a prediction.
        start: u64,
        /// The end of the range of rows.
        end: u64,
        /// The number of all rows.
        rows: u64,
    },
    /// Two chunks hold the same rows.
    #[error("rows {start}..{end} are in two chunks; delete {} and predict again", partial.display())]
    Twice {
        /// The first duplicate row.
        start: u64,
        /// The end of the second chunk.
        end: u64,
        /// The directory of the chunks.
        partial: PathBuf,
    },
    /// A chunk does not belong to these data.
    #[error("{}: {what} differs from the staged data; delete the chunk and predict again", path.display())]
    OtherData {
        path: PathBuf,
        /// The difference, such as "the shape of a prediction" or "the identity of a row".
        what: &'static str,
    },
    /// The stream could not be written.
    #[error("cannot write the stream of predictions: {0}")]
    Stream(#[source] arrow_schema::ArrowError),
    /// The Arrow file could not be written.
    #[error("cannot write {}: {source}", path.display())]
    Arrow { path: PathBuf, source: arrow_schema::ArrowError },
    /// The Parquet file could not be written.
    #[error("cannot write {}: {source}", path.display())]
    Parquet { path: PathBuf, source: parquet::errors::ParquetError },
}

impl GatherError {
    pub(super) fn arrow(path: &std::path::Path) -> impl Fn(arrow_schema::ArrowError) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Arrow { path: path.clone(), source }
    }

    pub(super) fn parquet(path: &std::path::Path) -> impl Fn(parquet::errors::ParquetError) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Parquet { path: path.clone(), source }
    }
}
