//! Names of the notes that an unfinished upload leaves beside its files.

/// Folder of the notes.
pub(super) const NOTES: &str = ".pushed";

pub(super) fn note(file: &str) -> String {
    format!("{NOTES}/{file}")
}
