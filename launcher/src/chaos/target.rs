//! A worker process that is verified before each signal.
//!
//! **Invariant:** a signal is sent only through a descriptor that was opened before the verification, so that the verified
//! process is the one that is hit.

use super::unix;
use enn_process::{ProcStat, pidfd};
use nix::{sys::signal::Signal, unistd::geteuid};
use std::{
    fs, io,
    os::{fd::OwnedFd, unix::fs::MetadataExt},
    path::Path,
};

/// Maximum number of generations between a launcher and its worker.
const ANCESTORS_MAX: usize = 32;

/// A process that cannot be mistaken for another: its id and its start time, in clock ticks since the boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) pid: u32,
    began: u64,
}

impl Identity {
    /// Returns the process that has this id now, unless it is a zombie.
    pub(super) fn of(pid: u32) -> Option<Self> {
        running(pid).map(|stat| Self { pid, began: stat.start })
    }

    /// Returns the process that holds the lock file of a run.
    pub(super) fn holder(lock: &Path) -> Option<Self> {
        let lock = fs::canonicalize(lock).ok()?;
        let inode = fs::metadata(&lock).ok()?.ino().to_string();
        let locks = fs::read_to_string("/proc/locks").ok()?;
        let holders = locks.lines().filter_map(|line| flock_writer(line, &inode));
        // Two file systems may have the same inode number: the holder has this very file open.
        holders.filter(|pid| has_open(*pid, &lock)).find_map(Self::of)
    }

    fn is_there(self) -> bool {
        Self::of(self.pid) == Some(self)
    }
}

/// Returns the state of a process that has not ended.
fn running(pid: u32) -> Option<ProcStat> {
    ProcStat::read(pid).filter(|stat| !matches!(stat.state, 'Z' | 'X'))
}

/// Returns the process of a line of /proc/locks that holds a whole-file write lock on this inode.
fn flock_writer(line: &str, inode: &str) -> Option<u32> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    match fields[..] {
        [_, "FLOCK", _, "WRITE", pid, file, ..] if file.rsplit(':').next() == Some(inode) => pid.parse().ok(),
        _ => None,
    }
}

fn has_open(pid: u32, file: &Path) -> bool {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    entries.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|open| open == file)
}

/// A worker process that was verified to belong to the run.
#[derive(Debug)]
pub(super) struct Target {
    own: Identity,
    launcher: Identity,
    pidfd: OwnedFd,
}

impl Target {
    /// Opens the process `pid`, when it belongs to this user and descends from `launcher`.
    pub(super) fn open(pid: u32, launcher: Identity) -> Option<Self> {
        let pidfd = pidfd(pid).ok()?;
        let target = Self { own: Identity::of(pid)?, launcher, pidfd };
        target.is_own_worker().then_some(target)
    }

    pub(super) fn pid(&self) -> u32 {
        self.own.pid
    }

    /// Sends a signal. Returns false when the process is gone or is no longer a worker of this run.
    pub(super) fn signal(&self, signal: Signal) -> bool {
        self.is_own_worker() && unix::signal(&self.pidfd, signal).is_ok()
    }

    /// Continues the process, also when its launcher has ended meanwhile, since it was stopped by this program.
    pub(super) fn resume(&self) {
        let _gone = unix::signal(&self.pidfd, Signal::SIGCONT);
    }

    /// Limits the size of the files that the process writes, bytes, and returns the previous limit; `None` when the
    /// process is gone or the system refuses.
    pub(super) fn limit_files(&self, bytes: u64) -> Option<u64> {
        if !self.own.is_there() {
            return None;
        }
        unix::limit_files(self.own.pid, bytes).ok()
    }

    fn is_own_worker(&self) -> bool {
        self.launcher.is_there() && self.own.is_there() && is_own(self.own.pid) && self.descends()
    }

    fn descends(&self) -> bool {
        let mut pid = self.own.pid;
        for _ in 0..ANCESTORS_MAX {
            match running(pid) {
                Some(stat) if stat.parent == self.launcher.pid => return true,
                Some(stat) if stat.parent > 1 => pid = stat.parent,
                _ => return false,
            }
        }
        false
    }
}

fn is_own(pid: u32) -> bool {
    let owner: io::Result<u32> = fs::metadata(format!("/proc/{pid}")).map(|meta| meta.uid());
    owner.is_ok_and(|owner| owner == geteuid().as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::fcntl::{Flock, FlockArg};
    use std::process::{Command, Stdio};

    #[test]
    fn only_descendants_of_the_launcher_are_targets() {
        let own = Identity::of(std::process::id()).unwrap();
        let mut child = Command::new("/bin/sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        let sibling = Identity::of(child.id()).unwrap();
        assert!(Target::open(child.id(), sibling).is_none(), "nobody is below itself");
        assert!(Target::open(own.pid, own).is_none() && Target::open(1, own).is_none());
        let reused = Identity { began: own.began + 1, ..own };
        assert!(Target::open(child.id(), reused).is_none(), "another process had this number");
        let target = Target::open(child.id(), own).unwrap();
        assert!(target.signal(Signal::SIGKILL));
        child.wait().unwrap();
        assert!(!target.signal(Signal::SIGKILL), "it is gone");
    }

    #[test]
    fn file_sizes_are_limited_and_let_go() {
        let own = Identity::of(std::process::id()).unwrap();
        let mut child = Command::new("/bin/sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        let target = Target::open(child.id(), own).unwrap();
        let before = target.limit_files(0).unwrap();
        assert_eq!(target.limit_files(before), Some(0));
        assert_eq!(target.limit_files(before), Some(before));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(target.limit_files(0), None);
    }

    #[test]
    fn the_holder_of_a_lock_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(".lock");
        let file = fs::File::create(&path).unwrap();
        assert_eq!(Identity::holder(&path), None);
        let held = Flock::lock(file, FlockArg::LockExclusiveNonblock).unwrap();
        assert_eq!(Identity::holder(&path), Identity::of(std::process::id()));
        drop(held);
        assert_eq!(Identity::holder(&path), None);
    }

    #[test]
    fn lines_of_the_system_are_read() {
        let line = "7: FLOCK  ADVISORY  WRITE 4242 fe:00:131 0 EOF";
        assert_eq!(flock_writer(line, "131"), Some(4242));
        assert_eq!(
            (flock_writer(line, "31"), flock_writer("7: -> FLOCK ADVISORY WRITE 1 fe:00:131 0 EOF", "131")),
            (None, None)
        );
    }
}
