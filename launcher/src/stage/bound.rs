//! What a source may be, at most: a small file can say, or unpack to, more than any memory holds. Bounds are looked at before memory is
//! taken.

use std::path::{Path, PathBuf};

/// Columns of a table, at most: each has a name and is looked for by it.
pub(crate) const COLUMNS_MAX: u64 = 100_000;

/// Inputs of a row of an array, and cells of its target, at most.
pub(crate) const WIDTH_MAX: u64 = 100_000;

/// A source that says, or unpacks to, more than is read of one.
#[derive(Debug, thiserror::Error)]
#[error("{}: found {found}, expected {expected}\n  hint: {hint}", path.display())]
pub struct BoundError {
    pub path: PathBuf,
    /// What it says or has, and where.
    pub found: String,
    /// What is read.
    pub expected: String,
    /// What to do.
    pub hint: &'static str,
}

impl BoundError {
    /// Of a file.
    pub(crate) fn new(path: &Path, found: impl Into<String>, expected: impl Into<String>, hint: &'static str) -> Self {
        Self { path: path.to_path_buf(), found: found.into(), expected: expected.into(), hint }
    }
}

/// Refuses more columns than a table may have.
pub(crate) fn columns(path: &Path, columns: u64) -> Result<(), BoundError> {
    if columns <= COLUMNS_MAX {
        return Ok(());
    }
    let found = format!("a table of {columns} columns");
    let expected = format!("at most {COLUMNS_MAX}");
    Err(BoundError::new(path, found, expected, "keep the columns that are used, or give wide rows as data.arrays"))
}

/// Refuses more inputs, or cells of a target, than a row of an array may have.
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
