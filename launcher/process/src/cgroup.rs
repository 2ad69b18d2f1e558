//! A control group (version 2) for everything a launch starts, where the user may make one: its processes can be killed as a
//! whole, even after they changed their session, parent or environment.
//!
//! **Invariant:** the launcher itself is never in it. Source: the kernel's Documentation/admin-guide/cgroup-v2.rst.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::fd::{AsRawFd, RawFd},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Longest wait for killed processes to leave.
const EMPTY_WAIT_MAX: Duration = Duration::from_secs(2);

/// A control group of this launch. Dropping it kills its processes and removes it.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
    procs: File,
}

impl Cgroup {
    /// Makes the group `name` below this process's own.
    ///
    /// # Errors
    /// Version 2 is not mounted, or this user may not make a group here; the launch then runs without one.
    pub fn create(name: &str) -> io::Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let parent =
            place(&mounts, &own).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no cgroup v2 is mounted"))?;
        let path = parent.join(name);
        fs::create_dir(&path)?;
        let opened = OpenOptions::new().write(true).open(path.join("cgroup.procs"));
        let killable = path.join("cgroup.kill").exists();
        match opened {
            Ok(procs) if killable => Ok(Self { path, procs }),
            opened => {
                fs::remove_dir(&path)?;
                Err(opened
                    .err()
                    .unwrap_or_else(|| io::Error::new(io::ErrorKind::Unsupported, "the kernel has no cgroup.kill")))
            }
        }
    }

    /// Returns the descriptor to which a process writes "0" to move into the group.
    pub(super) fn procs(&self) -> RawFd {
        self.procs.as_raw_fd()
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Kills every process in the group and waits until they are gone.
    pub fn kill(&self) {
        kill(&self.path);
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// Kills everything in the group and removes it; for a process that outlives the group's creator.
pub(super) fn remove(path: &Path) {
    kill(path);
    // A group that is not empty yet stays behind; its processes end soon.
    let _busy = fs::remove_dir(path);
}

fn kill(path: &Path) {
    if fs::write(path.join("cgroup.kill"), "1").is_err() {
        return;
    }
    let deadline = Instant::now() + EMPTY_WAIT_MAX;
    while populated(path) && Instant::now() < deadline {
        // Killed processes leave within microseconds; no event tells sooner.
        std::thread::yield_now();
    }
}

fn populated(path: &Path) -> bool {
    fs::read_to_string(path.join("cgroup.events")).is_ok_and(|events| events.lines().any(|line| line == "populated 1"))
}

/// Returns the directory of this process's group: the mount point of cgroup2 and the path below it.
fn place(mounts: &str, own: &str) -> Option<PathBuf> {
    // mountinfo: id parent major:minor root mount-point options … - type source options
    let mount = mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        after.starts_with("cgroup2 ").then(|| before.split(' ').nth(4)).flatten()
    })?;
    let path = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    Some(Path::new(mount).join(path.trim_start_matches('/')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_is_mount_and_path() {
        let mounts = "25 1 0:22 / /sys rw - sysfs sysfs rw\n36 25 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n";
        assert_eq!(place(mounts, "0::/user.slice/a.scope\n"), Some("/sys/fs/cgroup/user.slice/a.scope".into()));
        assert_eq!(place(mounts, "1:name=systemd:/\n"), None);
        assert_eq!(place("", "0::/\n"), None);
    }
}
