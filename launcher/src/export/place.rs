//! Where artifacts are made, and how they come to be there: in a directory of their own beside their place, from which they are moved when
//! they have been checked.

use enn_common::fs::{FileError, atomic, owned};
use std::{
    fs::{self, DirBuilder, File},
    io::ErrorKind,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

/// Beginning of the names of drafts: those of [`atomic::temporary`].
const TEMPORARY: &str = ".export.tmp-";

/// A directory for what is being made, gone when it is dropped.
#[derive(Debug)]
pub struct Draft {
    dir: PathBuf,
    /// Held while it is ours.
    _lock: File,
}

impl Draft {
    /// A new one below `out`, which is made if it is not there; what killed exports left there goes.
    ///
    /// # Errors
    /// What the system says.
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

    /// Where it is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Moves files or directories to `out`, the first one last, one right after the other. What has a name is replaced in one step: there
    /// is no moment without; it goes with the draft.
    ///
    /// # Errors
    /// What the system says.
    pub fn publish(&self, parts: &[PathBuf], out: &Path) -> Result<(), FileError> {
        let place = |part: &PathBuf| (part.clone(), out.join(part.file_name().unwrap_or_default()));
        let places: Vec<(PathBuf, PathBuf)> = parts.iter().rev().map(place).collect();
        atomic::exchange_all(&places)
    }
}

/// Waits until nobody else publishes in `out`; nobody does while what is given is held. Files of two exports would be mixed.
///
/// # Errors
/// What the system says.
pub fn alone(out: &Path) -> Result<File, FileError> {
    let dir = File::open(out).map_err(FileError::of("open", out))?;
    match dir.lock() {
        // Where there are no locks, whoever publishes takes care.
        Err(error) if error.kind() != ErrorKind::Unsupported => Err(FileError::of("lock", out)(error)),
        _ => Ok(dir),
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // What is left has a name that nobody asks for.
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
        let draft = Draft::new(out.path()).unwrap();
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
