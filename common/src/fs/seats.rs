//! The folder in which the workers of a node keep what is private to their seats, for a successor in it: in memory, as long as the
//! launcher lives. Its guard removes the folder of a launcher that was killed, else the next run does.
//!
//! **Invariant:** only this user can enter a folder, nobody can guess its name, and only folders of this user whose owner is dead are
//! removed.

use super::{FileError, owned, space};
use nix::{
    sys::statfs::{TMPFS_MAGIC, statfs},
    unistd::{AccessFlags, access, geteuid},
};
use std::{
    fs::{DirBuilder, File, remove_dir_all, symlink_metadata},
    hash::{BuildHasher, Hasher, RandomState},
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

/// The file system in memory that each Linux has, unless it was taken away.
const MEMORY: &str = "/dev/shm";
const PREFIX: &str = "enn-seats-";
/// A file system with less room is taken for full.
const ROOM_BYTES_MIN: u64 = 16 << 20;

/// A folder of this process.
#[derive(Debug)]
pub struct SeatDirectory {
    path: PathBuf,
    _lock: File,
}

impl SeatDirectory {
    /// Makes a folder in /dev/shm, or below `beside` where that has more memory, or where there is no room in memory. Folders that
    /// dead launchers left are removed.
    ///
    /// # Errors
    /// The folder cannot be made or locked.
    pub fn make(beside: &Path) -> Result<Self, FileError> {
        Self::make_in([Path::new(MEMORY), beside])
    }

    fn make_in(parents: [&Path; 2]) -> Result<Self, FileError> {
        parents.into_iter().for_each(remove_dead_in);
        let room = |parent: &Path| space::free_bytes(parent).ok().filter(|room| *room >= ROOM_BYTES_MIN);
        let in_memory = parents.into_iter().filter(|parent| is_memory(parent));
        // Of equals, the last one is taken.
        let roomiest = in_memory.rev().filter_map(|parent| Some((room(parent)?, parent))).max_by_key(|(room, _)| *room);
        let parent = roomiest.map_or(parents[1], |(_, parent)| parent);
        let make = || {
            // `RandomState` takes its keys from the operating system's random source.
            let random = RandomState::new().build_hasher().finish();
            let path = parent.join(format!("{PREFIX}{random:016x}"));
            let made = DirBuilder::new().mode(0o700).create(&path);
            made.map(|()| path.clone()).map_err(FileError::of("make", &path))
        };
        owned::create(make).map(|(path, lock)| Self { path, _lock: lock })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SeatDirectory {
    fn drop(&mut self) {
        // What cannot be removed is removed by the next run.
        let _left = remove_dir_all(&self.path);
    }
}

/// Removes folders in /dev/shm that dead launchers of this user left.
pub fn remove_dead() {
    remove_dead_in(Path::new(MEMORY));
}

fn remove_dead_in(parent: &Path) {
    let own = geteuid().as_raw();
    let is_strange = |path: &Path| !symlink_metadata(path).is_ok_and(|found| found.is_dir() && found.uid() == own);
    owned::sweep(parent, PREFIX, is_strange);
}

fn is_memory(parent: &Path) -> bool {
    let is_open = access(parent, AccessFlags::W_OK | AccessFlags::X_OK).is_ok();
    is_open && statfs(parent).is_ok_and(|found| found.filesystem_type() == TMPFS_MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir, write};

    #[test]
    fn a_folder_is_private_in_memory_and_goes_with_its_owner() {
        let beside = tempfile::tempdir().unwrap();
        let seats = SeatDirectory::make(beside.path()).unwrap();
        let path = seats.path().to_owned();
        assert_eq!(symlink_metadata(&path).unwrap().mode() & 0o777, 0o700);
        assert!(!is_memory(Path::new(MEMORY)) || is_memory(&path), "{}", path.display());
        write(path.join("seat-0-0-0"), "state").unwrap();
        remove_dead();
        assert!(path.join("seat-0-0-0").exists(), "its owner lives");
        drop(seats);
        assert!(!path.exists());
    }

    #[test]
    fn folders_of_the_dead_are_removed_and_no_others() {
        let parents = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [first, second] = &parents;
        let living = SeatDirectory::make_in([first.path(), second.path()]).unwrap();
        let dead = first.path().join(format!("{PREFIX}0"));
        let other = first.path().join("enn-0");
        let nobodys = first.path().join(format!("{PREFIX}1"));
        for folder in [&dead, &other, &nobodys] {
            create_dir(folder).unwrap();
            write(folder.join("mirror-0-0"), "state").unwrap();
        }
        [&dead, &other].into_iter().for_each(|folder| drop(owned::take(folder).unwrap().unwrap()));
        let next = SeatDirectory::make_in([first.path(), second.path()]).unwrap();
        assert!(!dead.exists() && other.exists() && nobodys.exists() && living.path().exists());
        assert_ne!(next.path(), living.path());
    }
}
