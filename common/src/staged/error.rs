//! What can be wrong with a staged directory, or with one `.npy` file.

use crate::fs::{FileError, space::SpaceError};
use std::path::PathBuf;

/// A staged directory could not be written or is not what it says it is.
#[derive(Debug, thiserror::Error)]
pub enum StagedError {
    /// There is no meta.json: staging never ended here.
    #[error("{} is not a staged directory: it has no meta.json; run `enn stage` again", path.display())]
    NotStaged { path: PathBuf },
    /// meta.json cannot be understood.
    #[error("{}: {source}; expected the metadata of a staged directory: delete the directory and stage again", path.display())]
    Meta {
        path: PathBuf,
        /// Message of the JSON reader, with line and column.
        #[source]
        source: serde_json::Error,
    },
    /// meta.json is of another version.
    #[error("{}: version {found}, this build reads version {expected}; stage the data again", path.display())]
    Version {
        path: PathBuf,
        /// Version in the file.
        found: u32,
        /// Version of this build.
        expected: u32,
    },
    /// Two parts of the directory contradict each other.
    #[error("{}: {what} is {found}, expected {expected}; delete the directory and stage again", path.display())]
    Mismatch {
        path: PathBuf,
        /// Property that was compared: "shape", "length".
        what: &'static str,
        /// Value in the file.
        found: String,
        /// Value that the metadata demand.
        expected: String,
    },
    /// An `.npy` header cannot be used.
    #[error("{}: {kind}", path.display())]
    Npy {
        path: PathBuf,
        #[source]
        kind: super::npy::NpyError,
    },
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// The disk is too small for the arrays.
    #[error(transparent)]
    Space(#[from] SpaceError),
}
