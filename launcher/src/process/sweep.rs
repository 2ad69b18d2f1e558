//! Finding what the workers left behind: processes that left their group (setsid, double fork) still carry a variable that
//! only this launch sets.
//!
//! **Invariant:** only processes of this user that carry the mark are killed.

use nix::{sys::signal::Signal, unistd::Pid};
use std::{
    ffi::{OsStr, OsString},
    fs,
    hash::{BuildHasher, Hasher, RandomState},
    os::unix::ffi::OsStrExt,
};

/// Passes over /proc: a process may fork while one pass reads.
const PASSES_MAX: u32 = 8;

/// The variable.
pub(crate) const VARIABLE: &str = "ENN_LAUNCH";

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

    /// Value of [`VARIABLE`] for the workers.
    pub(crate) fn value(&self) -> &OsStr {
        &self.value
    }

    fn is_on(&self, environment: &[u8]) -> bool {
        let mut entries = environment.split(|byte| *byte == 0);
        let of_variable =
            |entry: &[u8]| entry.strip_prefix(VARIABLE.as_bytes())?.strip_prefix(b"=").map(<[u8]>::to_owned);
        let Some(value) = entries.find_map(of_variable) else { return false };
        value.split(|byte| *byte == b':').any(|part| part == self.own.as_bytes())
    }
}

/// Kills every process that carries the mark, but those in `spared`; returns how many it found.
pub(crate) fn sweep(mark: &Mark, spared: &[u32]) -> usize {
    let mut killed = Vec::new();
    for _ in 0..PASSES_MAX {
        let before = killed.len();
        for pid in processes().filter(|pid| !spared.contains(pid)) {
            // The environment of another user's process cannot be read; one that has just ended reads as empty.
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            if mark.is_on(&environment) && !killed.contains(&pid) {
                let _gone = nix::sys::signal::kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
                killed.push(pid);
            }
        }
        if killed.len() == before {
            break;
        }
    }
    killed.len()
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
            command.arg("60").env(VARIABLE, mark.value()).stdin(Stdio::null()).spawn().unwrap()
        };
        let (mut nested, mut other) = (start(&inner), start(&stranger));
        assert_eq!(sweep(&outer, &[nested.id()]), 0);
        assert_eq!(sweep(&outer, &[]), 1, "the inner launch's process carries the outer's mark too");
        assert!(!nested.wait().unwrap().success());
        assert!(other.try_wait().unwrap().is_none());
        assert_eq!(sweep(&stranger, &[]), 1);
        other.wait().unwrap();
    }
}
