//! Finding what the workers left behind. Processes that left their group (setsid, double fork) still carry a variable that
//! only this launch sets; those that cleared their environment have become children of the launcher.
//!
//! **Invariant:** only processes of this user that carry the mark, or children of this process, are killed.

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

/// Passes over /proc: a process may fork while one pass reads.
const PASSES_MAX: u32 = 8;

/// The variable.
pub(crate) const MARK_VARIABLE: &str = "ENN_LAUNCH";

/// A mark that all processes of a launch inherit. One launch inside another carries both marks.
#[derive(Debug, Clone)]
pub(crate) struct Mark {
    own: String,
    value: OsString,
}

impl Mark {
    /// A new mark behind the one inherited, if any.
    pub(crate) fn new(inherited: Option<&OsStr>) -> Self {
        // Keyed by the operating system's randomness.
        let own = format!("{:016x}", RandomState::new().build_hasher().finish());
        let mut value = inherited.map(OsStr::to_owned).unwrap_or_default();
        value.push(":");
        value.push(&own);
        Self { own, value }
    }

    /// The part that only this launch has.
    pub(crate) fn own(&self) -> &str {
        &self.own
    }

    /// Value of [`MARK_VARIABLE`] for the workers.
    pub(crate) fn value(&self) -> &OsStr {
        &self.value
    }

    /// Whether a process that lives carries it.
    pub(crate) fn is_carried_by(&self, pid: u32) -> bool {
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

/// Kills every process that carries the mark and, when this process adopts orphans, every child but `own`: the guard, and what else
/// helps the launcher. Returns how many it found. No worker may be alive.
pub(crate) fn sweep(mark: &Mark, own: &[u32]) -> usize {
    let launcher = std::process::id();
    let found = kill_all(|pid| mark.is_on(&environment(pid)) || (!own.contains(&pid) && parent(pid) == Some(launcher)));
    reap_orphans(|pid| own.contains(&pid));
    found
}

/// Kills every process that carries the mark.
pub(super) fn kill_marked(mark: &Mark) -> usize {
    kill_all(|pid| mark.is_on(&environment(pid)))
}

/// Sends a signal to one process, not to its group.
pub(crate) fn signal_one(pid: u32, signal: Signal) {
    // Number 0 would be this process's own group.
    if let Some(pid) = i32::try_from(pid).ok().filter(|pid| *pid > 1) {
        // One that has just ended is what was wanted.
        let _gone = kill(Pid::from_raw(pid), signal);
    }
}

/// Kills every child of this process, and the group that it leads.
pub(crate) fn end_children() {
    let own = std::process::id();
    for pid in processes().filter(|pid| parent(*pid) == Some(own)) {
        let pid = Pid::from_raw(pid.cast_signed());
        // One that leads no group, yet, is killed alone.
        let _gone = killpg(pid, Signal::SIGKILL).or_else(|_| kill(pid, Signal::SIGKILL));
    }
}

/// Reaps children that ended and are not known to the caller: orphans this process adopted.
pub(crate) fn reap_orphans(known: impl Fn(u32) -> bool) {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    while let Ok(status) = waitid(Id::All, flags) {
        let Some(pid) = status.pid() else { return };
        // A worker that has just ended is reaped by its owner; what hides behind it comes with the next signal.
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

/// The environment of a process; that of another user cannot be read, and one that has just ended has none.
fn environment(pid: u32) -> Vec<u8> {
    fs::read(format!("/proc/{pid}/environ")).unwrap_or_default()
}

/// The parent of a process that lives.
fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may hold anything; after it come state and parent.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    if state == "Z" { None } else { fields.next()?.parse().ok() }
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
