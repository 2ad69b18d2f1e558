//! The error of every file operation: what was being done, to which path, and what the system said.

use std::{
    io,
    path::{Path, PathBuf},
};

/// A file operation that failed. `Display` reads "cannot {action} {path}: {cause}", with a hint where one is known.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}: {source}{}", path.display(), hint(source))]
pub struct FileError {
    /// Verb: "write", "rename", "map".
    pub action: &'static str,
    pub path: PathBuf,
    #[source]
    pub source: io::Error,
}

impl FileError {
    /// Wraps an `io::Error`; made to be used as `.map_err(FileError::of("write", path))`.
    pub fn of(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self { action, path: path.to_path_buf(), source }
    }

    /// Whether the disk or the quota is full.
    pub fn is_full(&self) -> bool {
        matches!(self.source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    }

    /// Whether the path does not exist.
    pub fn is_missing(&self) -> bool {
        self.source.kind() == io::ErrorKind::NotFound
    }
}

/// The last words of the sentence.
fn hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull => {
            "; free some space on that file system (`df`, and `df -i` for its number of files)"
        }
        io::ErrorKind::QuotaExceeded => "; free some of your quota on that file system",
        io::ErrorKind::PermissionDenied => "; check the owner and the permissions",
        io::ErrorKind::ReadOnlyFilesystem => "; choose a directory on a writable file system",
        _ => "",
    }
}
