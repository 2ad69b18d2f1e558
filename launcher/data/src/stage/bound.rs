//! Size limits of sources: a small file can state, or unpack to, more than any memory holds. Limits are checked before allocation.

use std::path::{Path, PathBuf};

pub(crate) const COLUMNS_MAX: u64 = 100_000;

pub(crate) const WIDTH_MAX: u64 = 100_000;

/// A source that states, or unpacks to, more than a size limit.
#[derive(Debug, thiserror::Error)]
#[error("{}: found {found}, expected {expected}\n  hint: {hint}", path.display())]
pub struct BoundError {
    pub path: PathBuf,
    pub found: String,
    pub expected: String,
    pub hint: &'static str,
}

impl BoundError {
    pub(crate) fn new(path: &Path, found: impl Into<String>, expected: impl Into<String>, hint: &'static str) -> Self {
        Self { path: path.to_path_buf(), found: found.into(), expected: expected.into(), hint }
    }
}

pub(crate) fn columns(path: &Path, columns: u64) -> Result<(), BoundError> {
    if columns <= COLUMNS_MAX {
        return Ok(());
    }
    let found = format!("a table of {columns} columns");
    let expected = format!("at most {COLUMNS_MAX}");
    Err(BoundError::new(path, found, expected, "keep the columns that are used, or give wide rows as data.arrays"))
}

pub(crate) fn width(path: &Path, array: &str, width: u64) -> Result<(), BoundError> {
    if width <= WIDTH_MAX {
        return Ok(());
    }
    let found = format!("array {array:?} with {width} numbers in a row");
    let expected = format!("at most {WIDTH_MAX}");
    Err(BoundError::new(
        path,
        found,
        expected,
        "see whether the first axis counts the rows, and leave out what is not used",
    ))
}
