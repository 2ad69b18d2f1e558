//! Directories of work in progress. Each has a file that its owner holds locked while it lives, and the system lets go of when it dies:
//! so what dead processes left can be told from what living ones are at.
//!
//! **Invariant:** a lock is held before it has its name: one that can be taken is a dead owner's. A directory without one is nobody's.

use super::{FileError, atomic};
use std::{
    fs::{self, File, TryLockError},
    io::{self, ErrorKind},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

pub const LOCK: &str = "lock";
/// Beginning of its name before it is held: those of [`atomic::temporary`].
const LOCK_TEMPORARY: &str = ".lock.tmp-";
/// Times that a new directory may be swept before it has a lock.
const SWEPT_MAX: u32 = 10;

/// A new directory, as `make` makes it, and its lock.
pub fn create(make: impl Fn() -> Result<PathBuf, FileError>) -> Result<(PathBuf, File), FileError> {
    let mut dir = make()?;
    for _ in 0..SWEPT_MAX {
        if let Some(lock) = take(&dir)? {
            return Ok((dir, lock));
        }
        dir = make()?;
    }
    Err(FileError::of("lock", &dir)(ErrorKind::ResourceBusy.into()))
}

/// The lock of a directory, made where there is none; `None` while somebody else has it, or when the directory has gone or got its name
/// meanwhile.
pub fn take(dir: &Path) -> Result<Option<File>, FileError> {
    let path = dir.join(LOCK);
    let gone = |error: &io::Error| error.kind() == ErrorKind::NotFound;
    match held(&path) {
        Ok(lock) => return Ok(Some(lock)),
        Err(error) if gone(&error) => return Ok(None),
        // Another's; or a file system without links, on which it is held a moment later.
        Err(_) => {}
    }
    let lock = match File::create(&path) {
        Err(error) if gone(&error) => return Ok(None),
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

/// A new lock that is held.
fn held(path: &Path) -> io::Result<File> {
    let beside = atomic::temporary(path);
    let lock = File::create_new(&beside)?;
    let linked = lock.try_lock().map_err(io::Error::from).and_then(|()| fs::hard_link(&beside, path));
    let _gone = fs::remove_file(&beside);
    linked.map(|()| lock)
}

/// Removes the directories in `out` whose names begin with `start`, but for those of living owners and those that are to be kept. Best
/// effort: what cannot be read or locked is left alone.
pub fn sweep(out: &Path, start: &str, is_kept: impl Fn(&Path) -> bool) {
    for entry in fs::read_dir(out).into_iter().flatten().flatten() {
        if !entry.file_name().to_string_lossy().starts_with(start) || is_kept(&entry.path()) {
            continue;
        }
        let lock = match File::open(entry.path().join(LOCK)) {
            Ok(lock) => lock,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                remove_empty(&entry.path());
                continue;
            }
            Err(_) => continue,
        };
        if !matches!(lock.try_lock(), Err(TryLockError::WouldBlock)) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Removes a directory in which there is nothing yet. Whoever is about to take it makes another.
fn remove_empty(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(LOCK_TEMPORARY) {
            let _ = fs::remove_file(entry.path());
        }
    }
    let _ = fs::remove_dir(dir);
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
        let living = dir(".a-1");
        let dead = dir(".a-2");
        let kept = dir(".a-3");
        let bare = dir(".a-4");
        let other = dir(".b-1");
        let lock = take(&living).unwrap().unwrap();
        assert!(take(&living).unwrap().is_none(), "it has an owner");
        [&dead, &kept, &other].into_iter().for_each(|dir| drop(take(dir).unwrap().unwrap()));
        fs::write(bare.join(".lock.tmp-1-0"), "").unwrap();
        let full = dir(".a-5");
        fs::write(full.join("somebody's"), "").unwrap();
        sweep(out.path(), ".a-", |dir| dir == kept);
        assert!(!dead.exists() && [&living, &kept, &full, &other].iter().all(|dir| dir.exists()));
        assert!(!bare.exists(), "nobody took it");
        drop(lock);
        sweep(out.path(), ".a-", |_| false);
        assert!(!living.exists() && !kept.exists());
        assert!(take(&dead).unwrap().is_none(), "it is gone");
    }

    #[test]
    fn a_lock_that_is_there_is_held() {
        let out = tempfile::tempdir().unwrap();
        let path = out.path().to_owned();
        let is_done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Sweeps as fast as it can: nothing of a living owner's may go.
            scope.spawn(|| {
                while !is_done.load(std::sync::atomic::Ordering::Relaxed) {
                    sweep(&path, ".a-", |_| false);
                }
            });
            for number in 0..300 {
                let name = std::sync::atomic::AtomicU64::new(0);
                let make = || {
                    let part = name.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    let dir = path.join(format!(".a-{number}-{part}"));
                    fs::create_dir(&dir).map(|()| dir.clone()).map_err(FileError::of("make", &dir))
                };
                // One that was swept ten times running is possible, and no mistake.
                let Ok((dir, lock)) = create(make) else { continue };
                fs::write(dir.join("work"), "mine").unwrap();
                std::thread::yield_now();
                assert_eq!(fs::read(dir.join("work")).unwrap(), b"mine");
                // The last of it may be swept.
                let _ = fs::remove_dir_all(&dir);
                drop(lock);
            }
            is_done.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }
}
