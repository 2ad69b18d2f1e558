//! State of a process from /proc, without stopping it.

use crate::ProcStat;
use nix::unistd::{SysconfVar, sysconf};
use std::{
    ffi::{OsStr, OsString},
    fmt::Write,
    fs,
    io::{self, Read},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

/// Bytes that are read of a stack that a script has written.
const WRITTEN_STACK_BYTES_MAX: u64 = 64 << 10;

/// Returns one line on a process: state, CPU time and memory. Takes microseconds and needs no tool.
pub fn activity(pid: u32) -> String {
    let dir = process(pid);
    let Some(stat) = ProcStat::read(pid) else { return "gone".into() };
    let mut line = state(stat.state).to_owned();
    if let Some(place) = wait_channel(&dir).filter(|_| !matches!(stat.state, 'R' | 'Z' | 'X')) {
        let _ok = write!(line, " in {place}");
    }
    let seconds = stat.cpu as f64 / ticks_per_second() as f64;
    let megabytes = stat.pages.saturating_mul(page_bytes()) / 1_000_000;
    let _ok = write!(line, ", {seconds:.1} s CPU, {megabytes} MB");
    line
}

/// Lists the threads of a process, a line each: id, name, state, and where in the kernel they wait.
pub(super) fn threads(pid: u32) -> String {
    let tasks = process(pid).join("task");
    let mut ids: Vec<u32> = fs::read_dir(&tasks)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    ids.sort_unstable();
    let mut lines = String::new();
    for id in ids {
        let dir = tasks.join(id.to_string());
        let name = read(&dir.join("comm")).unwrap_or_default();
        let stat = read(&dir.join("stat")).and_then(|text| ProcStat::parse(&text));
        let state = stat.map_or("ended", |stat| state(stat.state));
        let _ok = write!(lines, "{id:>8}  {:16}  {state}", name.trim());
        if let Some(place) = wait_channel(&dir) {
            let _ok = write!(lines, " in {place}");
        }
        // Number and arguments of the system call are readable only with permission to trace the process.
        if let Some(call) = read(&dir.join("syscall")).filter(|call| !call.trim().is_empty()) {
            let _ok = write!(lines, "  syscall {}", call.trim());
        }
        lines.push('\n');
    }
    lines
}

/// Returns the start time of the process, by the clock of this host.
pub(super) fn started(pid: u32) -> Option<SystemTime> {
    let stat = ProcStat::read(pid)?;
    let boot = read(Path::new("/proc/stat"))?;
    let boot = boot.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    let after = stat.start / ticks_per_second();
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(boot))?.checked_add(Duration::from_secs(after))
}

/// Returns the environment with which the process was started.
pub(super) fn environment(pid: u32) -> io::Result<Vec<u8>> {
    fs::read(process(pid).join("environ"))
}

/// Returns a variable of such an environment, unless it is empty.
pub(super) fn variable(environ: &[u8], name: &str) -> Option<OsString> {
    let mut entries = environ.split(|byte| *byte == 0);
    let value = entries.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
    (!value.is_empty()).then(|| OsStr::from_bytes(value).to_owned())
}

/// Returns the stack of its main thread that a script writes into the folder of its seat while it does no step.
pub(super) fn written_stack(pid: u32) -> Option<String> {
    let seats = variable(&environment(pid).ok()?, "ENN_SEAT_DIR")?;
    let mut text = Vec::new();
    let file = fs::File::open(Path::new(&seats).join(format!("stack-{pid}"))).ok()?;
    file.take(WRITTEN_STACK_BYTES_MAX).read_to_end(&mut text).ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// Returns whether the process runs a Python interpreter, as a program or embedded.
pub(super) fn is_python(pid: u32) -> bool {
    let dir = process(pid);
    let program = fs::read_link(dir.join("exe")).unwrap_or_default();
    program.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python"))
        || read(&dir.join("maps")).is_some_and(|maps| maps.contains("/libpython"))
}

fn process(pid: u32) -> PathBuf {
    Path::new("/proc").join(pid.to_string())
}

fn read(path: &Path) -> Option<String> {
    fs::read(path).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

fn wait_channel(dir: &Path) -> Option<String> {
    read(&dir.join("wchan")).filter(|place| !place.is_empty() && place != "0")
}

fn state(letter: char) -> &'static str {
    match letter {
        'R' => "running",
        'S' => "sleeping",
        'D' => "waiting for a device",
        'T' => "stopped",
        't' => "stopped by a debugger",
        'Z' | 'X' => "ended",
        'I' => "idle",
        _ => "in an unknown state",
    }
}

fn ticks_per_second() -> u64 {
    system(SysconfVar::CLK_TCK).unwrap_or(100)
}

fn page_bytes() -> u64 {
    system(SysconfVar::PAGE_SIZE).unwrap_or(4096)
}

fn system(what: SysconfVar) -> Option<u64> {
    sysconf(what).ok().flatten().and_then(|value| u64::try_from(value).ok()).filter(|value| *value > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_runs() {
        let pid = std::process::id();
        let line = activity(pid);
        assert!(line.contains(" s CPU, ") && line.ends_with(" MB"), "{line}");
        assert!(threads(pid).lines().count() >= 2);
        let age = SystemTime::now().duration_since(started(pid).unwrap()).unwrap();
        assert!(age < Duration::from_secs(3600), "{age:?}");
        assert_eq!(activity(u32::MAX), "gone");
    }
}
