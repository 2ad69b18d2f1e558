//! The directory in which artifacts are made, beside their final place, to which they are moved when they have
//! been checked.

use enn_common::fs::{FileError, atomic, owned};
use std::{
    fs::{self, DirBuilder, File},
    io::ErrorKind,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

/// Prefix of the names of drafts, as made by [`atomic::temporary`].
const TEMPORARY: &str = ".export.tmp-";

/// A directory for unfinished artifacts, removed when it is dropped.
#[derive(Debug)]
pub struct DraftDir {
    dir: PathBuf,
    /// Lock that is held while the directory is in use.
    _lock: File,
}

impl DraftDir {
    /// Makes a draft below `out`, which is made if it does not exist; drafts of killed exports are removed.
    ///
    /// # Errors
    /// Any error of the system.
    pub fn new(out: &Path) -> Result<Self, FileError> {
        fs::create_dir_all(out).map_err(FileError::of("make the directory", out))?;
        owned::sweep(out, TEMPORARY, |_| false);
        let make = || {
            let dir = atomic::temporary(&out.join("export"));
            DirBuilder::new().mode(0o700).create(&dir).map_err(FileError::of("make the directory", &dir))?;
            Ok(dir)
        };
        owned::create(make).map(|(dir, lock)| Self { dir, _lock: lock })
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Moves files or directories to `out`, the first one last, one right after the other. An existing one is replaced in one step, so
    /// that the name always exists; the old one is removed with the draft.
    ///
    /// # Errors
    /// Any error of the system.
    pub fn publish(&self, parts: &[PathBuf], out: &Path) -> Result<(), FileError> {
        let place = |part: &PathBuf| (part.clone(), out.join(part.file_name().unwrap_or_default()));
        let places: Vec<(PathBuf, PathBuf)> = parts.iter().rev().map(place).collect();
        atomic::exchange_all(&places)
    }
}

/// Waits for exclusive publication in `out`, which lasts while the returned file is held. Files of two exports would be mixed.
///
/// # Errors
/// Any error of the system.
pub fn lock_output(out: &Path) -> Result<File, FileError> {
    let dir = File::open(out).map_err(FileError::of("open", out))?;
    match dir.lock() {
        // On a file system without locks the user must take care.
        Err(error) if error.kind() != ErrorKind::Unsupported => Err(FileError::of("lock", out)(error)),
        _ => Ok(dir),
    }
}

impl Drop for DraftDir {
    fn drop(&mut self) {
        // A leftover has a name that nothing uses.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn artifacts_replace_what_was_there_and_drafts_leave_nothing() {
        let out = tempfile::tempdir().unwrap();
        let old = out.path().join("m.savedmodel");
        fs::create_dir(&old).unwrap();
        fs::write(old.join("stale"), "1").unwrap();
        let draft = DraftDir::new(out.path()).unwrap();
        let made = draft.dir().join("m.savedmodel");
        fs::create_dir(&made).unwrap();
        fs::write(made.join("saved_model.pb"), "2").unwrap();
        let beside = draft.dir().join("m.savedmodel.json");
        fs::write(&beside, "{}").unwrap();
        draft.publish(&[made, beside], out.path()).unwrap();
        drop(draft);
        let mut names: Vec<_> = fs::read_dir(out.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["m.savedmodel", "m.savedmodel.json"]);
        assert!(!old.join("stale").exists() && old.join("saved_model.pb").exists());
    }
}
