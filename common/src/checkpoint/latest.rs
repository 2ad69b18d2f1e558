//! Which checkpoint a run resumes from: the newest that is complete. Those passed over come with the reason.

use super::{Checkpoint, ReadError, name};
use std::path::{Path, PathBuf};

/// What was found in a checkpoints directory.
#[derive(Debug, Default)]
pub struct Latest {
    /// The newest complete checkpoint.
    pub found: Option<Checkpoint>,
    /// Newer ones that are damaged or incomplete, newest first, each with the reason.
    pub skipped: Vec<(PathBuf, ReadError)>,
}

/// Opens the newest complete checkpoint below `checkpoints`. Reads manifests and sizes, no tensor data.
pub fn latest(checkpoints: &Path) -> Latest {
    let mut skipped = Vec::new();
    for (_, path) in name::list(checkpoints) {
        match Checkpoint::open(&path) {
            Ok(found) => return Latest { found: Some(found), skipped },
            Err(error) => skipped.push((path, error)),
        }
    }
    Latest { found: None, skipped }
}
