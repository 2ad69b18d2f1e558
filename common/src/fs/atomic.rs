//! A file is replaced whole or not at all: write beside it, sync, rename over it, sync the directory.

use super::{Disk, FileError, Storage};
use std::{
    collections::BTreeSet,
    fs::File,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

/// Numbers the temporary names of this process.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Replaces `path` by `bytes`; durable when it returns. After an error or a crash the old file, or none, is there.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    write_on(&Disk, path, bytes)
}

pub fn write_on(storage: &dyn Storage, path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    write_parts_on(storage, path, &[bytes])
}

/// `write` of bytes that lie in parts.
pub fn write_parts(path: &Path, parts: &[&[u8]]) -> Result<(), FileError> {
    write_parts_on(&Disk, path, parts)
}

fn write_parts_on(storage: &dyn Storage, path: &Path, parts: &[&[u8]]) -> Result<(), FileError> {
    let beside = temporary(path);
    let result = storage.write(&beside, parts).and_then(|()| storage.rename(&beside, path));
    if let Err(error) = result {
        // The error that is told is the first one; the leftover is harmless and named so that nobody reads it.
        let _ = std::fs::remove_file(&beside);
        return Err(error);
    }
    storage.sync_dir(parent(path))
}

/// Replaces `path` by `bytes` without waiting for the disk: whoever looks sees the old file or the whole new one, but a power failure may
/// leave a torn one. Only for what is checked against a digest before it is used, and can be made again.
pub fn write_unsynced(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let beside = temporary(path);
    let written = std::fs::write(&beside, bytes).map_err(FileError::of("write", &beside));
    let placed = written.and_then(|()| Disk.rename(&beside, path));
    if placed.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    placed
}

/// Gives a file that somebody else wrote beside `path`, at a temporary name, its own name; durable when it returns. After an error it
/// is gone.
pub fn place(beside: &Path, path: &Path) -> Result<(), FileError> {
    let synced = File::open(beside).and_then(|file| file.sync_all()).map_err(FileError::of("sync", beside));
    let placed = synced.and_then(|()| Disk.rename(beside, path)).and_then(|()| Disk.sync_dir(parent(path)));
    if placed.is_err() {
        let _ = std::fs::remove_file(beside);
    }
    placed
}

/// Makes a directory and its missing parents; their names are durable when it returns, also where one who died made them.
pub fn make_dir(path: &Path) -> Result<(), FileError> {
    make_dir_on(&Disk, path)
}

pub fn make_dir_on(storage: &dyn Storage, path: &Path) -> Result<(), FileError> {
    let made: Vec<&Path> = path.ancestors().skip(1).take_while(|above| !storage.exists(above)).collect();
    storage.create_dir(path)?;
    made.into_iter().rev().chain([path]).try_for_each(|made| storage.sync_dir(parent(made)))
}

/// Gives a directory that was filled beside `path`, at a temporary name, its own name; one that has it is exchanged in one step and
/// removed. Durable when it returns, as far as what lies in it is.
pub fn place_dir(beside: &Path, path: &Path) -> Result<(), FileError> {
    place_dir_on(&Disk, beside, path)
}

pub fn place_dir_on(storage: &dyn Storage, beside: &Path, path: &Path) -> Result<(), FileError> {
    storage.sync_dir(beside)?;
    if !storage.exists(path) {
        storage.rename(beside, path)?;
        return storage.sync_dir(parent(path));
    }
    storage.exchange(beside, path)?;
    // What was there before goes when the new one is durable.
    storage.sync_dir(parent(path))?;
    storage.remove_dir(beside)
}

/// `place` or `place_dir`, whatever was made; what has the name, of either kind, is exchanged in one step and removed.
pub fn place_any(beside: &Path, path: &Path) -> Result<(), FileError> {
    match (beside.is_dir(), path.symlink_metadata().map(|found| found.is_dir())) {
        (true, Ok(true) | Err(_)) => place_dir(beside, path),
        (false, Ok(false) | Err(_)) => place(beside, path),
        (_, Ok(was_dir)) => {
            Disk.exchange(beside, path)?;
            Disk.sync_dir(parent(path))?;
            let gone = if was_dir { std::fs::remove_dir_all(beside) } else { std::fs::remove_file(beside) };
            gone.map_err(FileError::of("remove", beside))
        }
    }
}

/// Gives several files and directories, on the file system of their places, their own names, one right after the other: what takes time is
/// done before and after, so that hardly a moment has some of them and not the others. What has a name, of either kind, is gone, or lies
/// where the new one was.
pub fn exchange_all(parts: &[(PathBuf, PathBuf)]) -> Result<(), FileError> {
    for (beside, _) in parts {
        File::open(beside).and_then(|file| file.sync_all()).map_err(FileError::of("sync", beside))?;
    }
    for (beside, path) in parts {
        // A file takes the place of another by itself, also where the system exchanges nothing.
        match path.symlink_metadata() {
            Ok(found) if found.is_dir() || beside.is_dir() => Disk.exchange(beside, path)?,
            _ => Disk.rename(beside, path)?,
        }
    }
    let places: BTreeSet<&Path> = parts.iter().map(|(_, path)| parent(path)).collect();
    places.into_iter().try_for_each(|place| Disk.sync_dir(place))
}

/// A hidden name in the same directory that no other process or thread uses.
pub fn temporary(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    path.with_file_name(format!(".{name}.tmp-{}-{number}", std::process::id()))
}

/// The directory that holds `path`; "." for a bare name.
pub fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_and_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.json");
        write(&path, b"old").unwrap();
        write(&path, b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        write_unsynced(&path, b"newer").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"newer");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_failed_write_keeps_the_old_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.json");
        std::fs::create_dir(&path).unwrap();
        let error = write(&path, b"new").unwrap_err();
        assert_eq!(error.action, "rename to");
        assert_eq!(write_unsynced(&path, b"new").unwrap_err().action, "rename to");
        assert!(path.is_dir());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_somebody_else_wrote_is_placed_or_gone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.ort");
        let beside = temporary(&path);
        assert_eq!(place(&beside, &path).unwrap_err().action, "sync");
        std::fs::write(&beside, "new").unwrap();
        place(&beside, &path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        std::fs::write(&beside, "newer").unwrap();
        std::fs::create_dir(dir.path().join("taken")).unwrap();
        assert_eq!(place(&beside, &dir.path().join("taken")).unwrap_err().action, "rename to");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_directory_takes_the_place_of_another_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.savedmodel");
        for content in ["old", "new"] {
            let beside = temporary(&path);
            std::fs::create_dir(&beside).unwrap();
            std::fs::write(beside.join(content), content).unwrap();
            place_dir(&beside, &path).unwrap();
            assert_eq!(std::fs::read(path.join(content)).unwrap(), content.as_bytes());
        }
        assert!(!path.join("old").exists());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn several_take_the_places_of_what_was_there() {
        let dir = tempfile::tempdir().unwrap();
        let draft = dir.path().join("draft");
        std::fs::create_dir(&draft).unwrap();
        std::fs::create_dir(dir.path().join("b")).unwrap();
        std::fs::write(dir.path().join("a"), "old").unwrap();
        for name in ["a", "b", "c"] {
            std::fs::write(draft.join(name), "new").unwrap();
        }
        let parts: Vec<_> = ["a", "b", "c"].map(|name| (draft.join(name), dir.path().join(name))).into();
        exchange_all(&parts).unwrap();
        assert!(parts.iter().all(|(_, path)| std::fs::read(path).unwrap() == b"new"));
        assert!(draft.join("b").is_dir(), "what was there goes with the draft");
        // One that is not there: nothing is moved.
        std::fs::write(draft.join("a"), "newer").unwrap();
        assert_eq!(exchange_all(&parts).unwrap_err().action, "sync");
        assert_eq!(std::fs::read(dir.path().join("a")).unwrap(), b"new");
    }

    #[test]
    fn a_file_takes_the_place_of_a_directory_and_a_directory_that_of_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m");
        std::fs::write(&path, "old").unwrap();
        let beside = temporary(&path);
        std::fs::create_dir(&beside).unwrap();
        place_any(&beside, &path).unwrap();
        assert!(path.is_dir());
        std::fs::write(&beside, "new").unwrap();
        place_any(&beside, &path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn bare_names_live_in_the_current_directory() {
        assert_eq!(parent(Path::new("a")), Path::new("."));
        assert_eq!(parent(Path::new("/x/a")), Path::new("/x"));
    }
}
