//! The private directory of a broker's socket, and the removal of directories whose broker was killed.
//!
//! **Invariant:** a directory has its name only while its broker holds the lock on it, so one that can be locked belongs to a
//! dead broker. Only sockets with our names and empty directories of this user are ever removed.

use crate::error::BrokerError;
use nix::{
    fcntl::{Flock, FlockArg},
    unistd::geteuid,
};
use std::{
    fs::{self, File},
    hash::{BuildHasher, Hasher, RandomState},
    io,
    os::unix::{
        fs::{DirBuilderExt, MetadataExt},
        net::UnixStream,
    },
    path::{Path, PathBuf},
};

/// Name of the broker's socket in the directory.
pub(crate) const SOCKET: &str = "broker.sock";
/// Name of the broker's socket for scripts in the directory.
pub(crate) const SCRIPT_SOCKET: &str = "script.sock";
/// Name of the agent's control socket in the directory.
pub const CONTROL_SOCKET: &str = "control.sock";
const PREFIX: &str = "enn-";
const DIGITS: usize = 16;

/// A directory of this process with mode 0700, locked.
#[derive(Debug)]
pub(crate) struct SocketDirectory {
    path: PathBuf,
    _lock: Flock<File>,
}

impl SocketDirectory {
    /// Makes a directory below `parent`, after removing the directories of dead brokers.
    pub(crate) fn make(parent: &Path) -> Result<Self, BrokerError> {
        sweep(parent);
        // `RandomState` takes its keys from the operating system's random source.
        let random = RandomState::new().build_hasher().finish();
        let path = parent.join(format!("{PREFIX}{random:016x}"));
        let made = (|| -> io::Result<Flock<File>> {
            // The directory gets its name only after it is locked, so that it is not taken for a dead broker's.
            let unnamed = parent.join(format!(".{PREFIX}{random:016x}"));
            fs::DirBuilder::new().mode(0o700).create(&unnamed)?;
            let lock = Flock::lock(File::open(&unnamed)?, FlockArg::LockExclusiveNonblock);
            let lock = lock.map_err(|(_, errno)| io::Error::from(errno))?;
            fs::rename(&unnamed, &path)?;
            Ok(lock)
        })();
        match made {
            Ok(lock) => Ok(Self { path, _lock: lock }),
            Err(source) => Err(BrokerError::Directory { path, source }),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketDirectory {
    /// Removes the directory with its sockets, before its lock is released.
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// Removes the directories of dead brokers of this user.
fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let random = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        let ours = random.is_some_and(|rest| rest.len() == DIGITS && rest.bytes().all(|byte| byte.is_ascii_hexdigit()));
        if ours && entry.metadata().is_ok_and(|meta| meta.is_dir() && meta.uid() == geteuid().as_raw()) {
            remove_dead(&entry.path());
        }
    }
}

fn remove_dead(directory: &Path) {
    let Ok(file) = File::open(directory) else { return };
    let Ok(_lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else { return };
    // An older version of enn that takes no lock may listen here.
    let refused = UnixStream::connect(directory.join(SOCKET)).err();
    if refused.is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
        remove(directory);
    }
}

fn remove(directory: &Path) {
    // A leftover that cannot be removed is harmless. The broker's socket goes last: a directory that keeps it is swept again.
    for name in [CONTROL_SOCKET, SCRIPT_SOCKET, SOCKET] {
        let _absent = fs::remove_file(directory.join(name));
    }
    let _absent = fs::remove_dir(directory);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    fn names(parent: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(parent).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn those_of_dead_brokers_are_removed_and_no_others() {
        let parent = tempfile::tempdir().unwrap();
        let at = |name: &str| parent.path().join(name);
        let dead = "enn-00000000000000aa";
        let unlocked = "enn-00000000000000bb";
        let foreign = "enn-notes";
        for name in [dead, unlocked, foreign] {
            fs::create_dir(at(name)).unwrap();
        }
        drop(UnixListener::bind(at(dead).join(SOCKET)).unwrap());
        drop(UnixListener::bind(at(dead).join(CONTROL_SOCKET)).unwrap());
        let _listening = UnixListener::bind(at(unlocked).join(SOCKET)).unwrap();
        let first = SocketDirectory::make(parent.path()).unwrap();
        drop(UnixListener::bind(first.path().join(SOCKET)).unwrap());
        let second = SocketDirectory::make(parent.path()).unwrap();
        assert!(first.path().exists() && second.path().exists(), "what is locked lives");
        assert_eq!(names(parent.path()).len(), 4, "{:?}", names(parent.path()));
        assert!(!at(dead).exists() && at(unlocked).exists() && at(foreign).exists());
        let path = first.path().to_owned();
        drop(first);
        drop(second);
        let third = SocketDirectory::make(parent.path()).unwrap();
        assert!(!path.exists() && third.path().exists());
    }
}
