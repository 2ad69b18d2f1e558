//! Why predictions or a run could not be gathered.

use enn_common::{
    artifact::{chunk::ChunkError, seal::SealError},
    fs::{FileError, PathError, displace::DisplaceError, space::SpaceError},
    staged::StagedError,
};
use std::path::PathBuf;

/// One sentence with place, found, expected and, where there is one, a hint.
#[derive(Debug, thiserror::Error)]
pub enum GatherError {
    /// The disk.
    #[error(transparent)]
    File(#[from] FileError),
    /// The name of a file that cannot be listed in a manifest.
    #[error("cannot list a file in the manifest: {0}")]
    Path(#[from] PathError),
    /// Too little room.
    #[error(transparent)]
    Space(#[from] SpaceError),
    /// What is there is not replaced.
    #[error(transparent)]
    Displace(#[from] DisplaceError),
    /// A manifest.
    #[error(transparent)]
    Seal(#[from] SealError),
    #[error(transparent)]
    Chunk(#[from] ChunkError),
    /// The staged data.
    #[error(transparent)]
    Staged(#[from] StagedError),
    /// The output's name does not say a format.
    #[error(
        "{} does not end like a format that is written; expected NAME.parquet, NAME.arrow or NAME.csv, or a name without extension for a directory of .npy files",
        path.display()
    )]
    Format { path: PathBuf },
    /// The output is there already.
    #[error("{} is there already; choose another name, or replace it with --replace", path.display())]
    Exists { path: PathBuf },
    /// The output is what is predicted.
    #[error("{} holds the rows to predict, and would be lost; choose another name for the predictions", path.display())]
    Input { path: PathBuf },
    /// Rows without a prediction.
    #[error("rows {start}..{end} of {rows} were not predicted; predict again: the chunks that are complete are kept")]
    Rows {
        /// First row without a prediction.
        start: u64,
        /// Row behind the last one without.
        end: u64,
        /// All rows.
        rows: u64,
    },
    /// Two chunks hold the same rows.
    #[error("rows {start}..{end} are in two chunks; delete {} and predict again", partial.display())]
    Twice {
        /// First row that is there twice.
        start: u64,
        /// End of the second chunk.
        end: u64,
        /// Directory of the chunks.
        partial: PathBuf,
    },
    /// A chunk is not of these data.
    #[error("{}: {what} differs from the staged data; delete the chunk and predict again", path.display())]
    OtherData {
        path: PathBuf,
        /// "the shape of a prediction", "the identity of a row".
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
    Parquet {
        path: PathBuf,
        /// What the writer says.
        source: parquet::errors::ParquetError,
    },
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
