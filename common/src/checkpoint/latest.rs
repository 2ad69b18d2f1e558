//! Which checkpoint a run resumes from: the newest that is complete. Those passed over come with the reason.

use super::{Checkpoint, ReadError, check_file, name};
use crate::fs::{Disk, FileError, Storage};
use std::path::{Path, PathBuf};

/// Content of a checkpoints directory.
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

/// Takes a checkpoint that is damaged from those that count, and tells the damage; its files stay, and so does one that is whole.
///
/// Whoever read it found `file` wrong. That is read again here, because the memory or the disk of who read it may be what is bad.
pub fn set_aside(dir: &Path, file: Option<&Path>) -> Result<Option<ReadError>, FileError> {
    let Some(damage) = damage(dir, file).err().filter(ReadError::is_damage) else { return Ok(None) };
    match Disk.rename(&dir.join(name::MANIFEST), &dir.join(name::SET_ASIDE)) {
        // Without a manifest it counts for nothing already.
        Err(error) if error.is_missing() => {}
        renamed => renamed.and_then(|()| Disk.sync_dir(dir))?,
    }
    Ok(Some(damage))
}

fn damage(dir: &Path, file: Option<&Path>) -> Result<(), ReadError> {
    let found = Checkpoint::open(dir)?;
    let files = found.manifest().into_iter().flat_map(|manifest| &manifest.files);
    let mut read = files.filter(|listed| file.is_none_or(|file| file == listed.path.below(dir)));
    read.try_for_each(|listed| check_file(&listed.path.locate(dir)?, listed, &mut |_| {}))
}
