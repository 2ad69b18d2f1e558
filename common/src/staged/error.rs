//! What can be wrong with a staged directory, or with one `.npy` file.

use crate::fs::{FileError, space::SpaceError};
use std::path::{Path, PathBuf};

/// A staged directory could not be written or is not what it says it is.
#[derive(Debug, thiserror::Error)]
pub enum StagedError {
    #[error("{} is not a staged directory: it has no meta.json; run `enn stage` again", path.display())]
    NotStaged { path: PathBuf },
    #[error("{}: {source}; expected the metadata of a staged directory: delete the directory and stage again", path.display())]
    Meta {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error("{}: version {found}, this build reads version {expected}; stage the data again", path.display())]
    Version { path: PathBuf, found: u32, expected: u32 },
    #[error("{}: {what} is {found}, expected {expected}; delete the directory and stage again", path.display())]
    Mismatch { path: PathBuf, what: &'static str, found: String, expected: String },
    #[error("{}: {kind}", path.display())]
    Npy {
        path: PathBuf,
        #[source]
        kind: super::npy::NpyError,
    },
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Space(#[from] SpaceError),
}

impl StagedError {
    pub(super) fn mismatch(path: &Path, what: &'static str, found: impl ToString, expected: impl ToString) -> Self {
        Self::Mismatch { path: path.to_owned(), what, found: found.to_string(), expected: expected.to_string() }
    }

    /// The shape of an array cannot be.
    pub(super) fn shape(path: &Path, shape: &[u64]) -> Self {
        let kind = super::npy::NpyError::Shape { found: format!("{shape:?}") };
        Self::Npy { path: path.to_owned(), kind }
    }
}
