//! Finding processes that the workers left behind. Processes that left their group (setsid, double fork) still carry a variable that
//! only this launch sets; those that cleared their environment have become children of the launcher.
//!
//! **Invariant:** only processes of this user that carry the mark, or children of this process, are killed.

use super::ProcStat;
use nix::{
    sys::{
        signal::{Signal, kill, killpg},
        wait::{Id, WaitPidFlag, waitid, waitpid},
    },
    unistd::Pid,
};
use std::{
    ffi::{OsStr, OsString},
    fs,
    hash::{BuildHasher, Hasher, RandomState},
    os::unix::ffi::OsStrExt,
};

/// Limit on passes over /proc: a process may fork while one pass reads.
const PASSES_MAX: u32 = 8;

pub const MARK_VARIABLE: &str = "ENN_LAUNCH";

/// A mark that all processes of a launch inherit. A launch inside another carries both marks.
#[derive(Debug, Clone)]
pub struct Mark {
    own: String,
    value: OsString,
}

impl Mark {
    /// Makes a new mark, appended to the inherited one if any.
    pub fn new(inherited: Option<&OsStr>) -> Self {
        // `RandomState` takes its keys from the operating system's random source.
        let own = format!("{:016x}", RandomState::new().build_hasher().finish());
        let mut value = inherited.map(OsStr::to_owned).unwrap_or_default();
        value.push(":");
        value.push(&own);
        Self { own, value }
    }

    /// Returns the part that only this launch has.
    pub fn own(&self) -> &str {
        &self.own
    }

    /// Returns the value of [`MARK_VARIABLE`] for the workers.
    pub fn value(&self) -> &OsStr {
        &self.value
    }

    /// Returns whether a running process carries the mark.
    pub fn is_carried_by(&self, pid: u32) -> bool {
        self.is_on(&environment(pid))
    }

    fn is_on(&self, environment: &[u8]) -> bool {
        let mut entries = environment.split(|byte| *byte == 0);
        let of_variable =
            |entry: &[u8]| entry.strip_prefix(MARK_VARIABLE.as_bytes())?.strip_prefix(b"=").map(<[u8]>::to_owned);
        let Some(value) = entries.find_map(of_variable) else { return false };
        value.split(|byte| *byte == b':').any(|part| part == self.own.as_bytes())
    }
}

/// Kills every process that carries the mark and, when this process adopts orphans, every child except `own` (the guard and other
/// helpers of the launcher). Returns how many it found. No worker may be running.
pub fn sweep(mark: &Mark, own: &[u32]) -> usize {
    let launcher = std::process::id();
    let found = kill_all(|pid| mark.is_on(&environment(pid)) || (!own.contains(&pid) && parent(pid) == Some(launcher)));
    reap_orphans(|pid| own.contains(&pid));
    found
}

pub(super) fn kill_marked(mark: &Mark) -> usize {
    kill_all(|pid| mark.is_on(&environment(pid)))
}

/// Sends a signal to one process, not to its group.
pub fn signal_one(pid: u32, signal: Signal) {
    // Process id 0 would be this process's own group.
    if let Some(pid) = i32::try_from(pid).ok().filter(|pid| *pid > 1) {
        // A process that has just ended needs no signal.
        let _gone = kill(Pid::from_raw(pid), signal);
    }
}

/// Kills every child of this process, and the group that it leads.
pub fn end_children() {
    let own = std::process::id();
    for pid in processes().filter(|pid| parent(*pid) == Some(own)) {
        let pid = Pid::from_raw(pid.cast_signed());
        // A child that leads no group yet is killed alone.
        let _gone = killpg(pid, Signal::SIGKILL).or_else(|_| kill(pid, Signal::SIGKILL));
    }
}

/// Reaps ended children that are not known to the caller: orphans that this process adopted.
pub fn reap_orphans(known: impl Fn(u32) -> bool) {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    while let Ok(status) = waitid(Id::All, flags) {
        let Some(pid) = status.pid() else { return };
        // A worker that has just ended is reaped by its owner; orphans behind it are reaped after the next signal.
        if known(pid.as_raw().cast_unsigned()) {
            return;
        }
        let _reaped = waitpid(pid, Some(WaitPidFlag::WNOHANG));
    }
}

fn kill_all(wanted: impl Fn(u32) -> bool) -> usize {
    let mut killed = Vec::new();
    for _ in 0..PASSES_MAX {
        let before = killed.len();
        for pid in processes() {
            if !killed.contains(&pid) && wanted(pid) {
                let _gone = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
                killed.push(pid);
            }
        }
        if killed.len() == before {
            break;
        }
    }
    killed.len()
}

/// Returns the environment of a process; empty for another user's process and for one that has just ended.
fn environment(pid: u32) -> Vec<u8> {
    fs::read(format!("/proc/{pid}/environ")).unwrap_or_default()
}

fn parent(pid: u32) -> Option<u32> {
    ProcStat::read(pid).filter(|stat| stat.state != 'Z').map(|stat| stat.parent)
}

fn processes() -> impl Iterator<Item = u32> {
    let own = std::process::id();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let number = |entry: fs::DirEntry| std::str::from_utf8(entry.file_name().as_bytes()).ok()?.parse().ok();
    entries.filter_map(number).filter(move |pid| *pid != own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn only_what_carries_the_mark_is_killed() {
        let outer = Mark::new(None);
        let inner = Mark::new(Some(outer.value()));
        let stranger = Mark::new(None);
        let start = |mark: &Mark| {
            let mut command = Command::new("/bin/sleep");
            command.arg("60").env(MARK_VARIABLE, mark.value()).stdin(Stdio::null()).spawn().unwrap()
        };
        let mut nested = start(&inner);
        let mut other = start(&stranger);
        assert_eq!(kill_marked(&Mark::new(None)), 0);
        assert_eq!(kill_marked(&outer), 1, "the inner launch's process carries the outer's mark too");
        assert!(!nested.wait().unwrap().success());
        assert!(other.try_wait().unwrap().is_none());
        assert_eq!(kill_marked(&stranger), 1);
        other.wait().unwrap();
    }
}
