//! Directories of work in progress. Each has a file that its owner holds locked while it lives, and the system lets go of when it dies:
//! so what dead processes left can be told from what living ones are at.

use super::FileError;
use std::{
    fs::{self, File, TryLockError},
    io,
    os::unix::fs::MetadataExt,
    path::Path,
};

/// The file.
pub const LOCK: &str = "lock";

/// The lock of a directory, made where there is none; `None` while somebody else has it, or when the directory has gone or got its name
/// meanwhile.
///
/// # Errors
/// What the system says.
pub fn take(dir: &Path) -> Result<Option<File>, FileError> {
    let path = dir.join(LOCK);
    let lock = match File::create(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(FileError::of("create", &path))?,
    };
    match lock.try_lock() {
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(error)) => return Err(FileError::of("lock", &path)(error)),
        Ok(()) => {}
    }
    let same = |found: fs::Metadata| lock.metadata().is_ok_and(|own| own.ino() == found.ino());
    Ok(fs::metadata(&path).is_ok_and(same).then_some(lock))
}

/// Removes the directories in `out` whose names begin with `start`, but for those of living owners and those that are to be kept. Best
/// effort: what cannot be read or locked is left alone.
pub fn sweep(out: &Path, start: &str, is_kept: impl Fn(&Path) -> bool) {
    for entry in fs::read_dir(out).into_iter().flatten().flatten() {
        if !entry.file_name().to_string_lossy().starts_with(start) || is_kept(&entry.path()) {
            continue;
        }
        let Ok(lock) = File::open(entry.path().join(LOCK)) else { continue };
        if !matches!(lock.try_lock(), Err(TryLockError::WouldBlock)) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_living_have_and_what_has_another_name_stays() {
        let out = tempfile::tempdir().unwrap();
        let dir = |name: &str| {
            let dir = out.path().join(name);
            fs::create_dir(&dir).unwrap();
            dir
        };
        let (living, dead, kept, bare, other) = (dir(".a-1"), dir(".a-2"), dir(".a-3"), dir(".a-4"), dir(".b-1"));
        let lock = take(&living).unwrap().unwrap();
        assert!(take(&living).unwrap().is_none(), "it has an owner");
        [&dead, &kept, &other].into_iter().for_each(|dir| drop(take(dir).unwrap().unwrap()));
        sweep(out.path(), ".a-", |dir| dir == kept);
        assert!(!dead.exists() && [&living, &kept, &bare, &other].iter().all(|dir| dir.exists()));
        drop(lock);
        sweep(out.path(), ".a-", |_| false);
        assert!(!living.exists() && !kept.exists());
        assert!(take(&dead).unwrap().is_none(), "it is gone");
    }
}
