//! Collects the stacks of several processes, a few at a time, into one file each.

use super::{
    Tools, frames, proc,
    recorder::Recorder,
    tool::{Tool, ToolOutcome},
};
use crate::wait_ready;
use nix::{
    poll::{PollFd, PollFlags},
    sys::inotify::{AddWatchFlags, InitFlags, Inotify},
};
use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::fd::AsFd,
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

/// Limit on concurrent inspections: tools use a lot of memory and stop the process.
const AT_A_TIME: usize = 4;
/// Time for the flight recorder to write after a trigger; it reads its pipe about once a second.
const DUMP_WAIT: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StackTarget {
    pub rank: u32,
    pub pid: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankStack {
    pub rank: u32,
    pub pid: u32,
    /// The tool that returned a stack; `None`: only the kernel's state is known.
    pub tool: Option<&'static str>,
    /// Innermost frames of the main thread, or the process's state.
    pub top: String,
    /// File with the full output, when it could be written.
    pub file: Option<PathBuf>,
    /// Dump of the flight recorder.
    pub recorder: Option<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stacks {
    /// Entries in the order of the targets.
    pub ranks: Vec<RankStack>,
}

impl Stacks {
    pub fn summary(&self) -> Vec<String> {
        let line = |one: &RankStack| {
            let dump = one.recorder.as_ref().map(|path| format!("; flight recorder: {}", path.display()));
            format!("rank {} (process {}): {}{}", one.rank, one.pid, one.top, dump.unwrap_or_default())
        };
        self.ranks.iter().map(line).collect()
    }
}

/// Inspects all targets and writes `rank<N>.txt` into `dir`, which is made. Takes little longer than `limit`.
pub fn collect(targets: &[StackTarget], dir: &Path, limit: Duration) -> Stacks {
    collect_with(&Tools::default(), targets, dir, limit)
}

/// Does the same as [`collect`] with other tools.
pub fn collect_with(tools: &Tools, targets: &[StackTarget], dir: &Path, limit: Duration) -> Stacks {
    let deadline = Instant::now() + limit;
    let recorders: Vec<Recorder> = targets
        .iter()
        .map(|target| proc::environment(target.pid).map(|text| Recorder::new(&text, target.rank)).unwrap_or_default())
        .collect();
    let triggered_at = SystemTime::now();
    // The triggers come first: the dumps are written while the stacks are collected.
    let triggered: Vec<&Recorder> = recorders.iter().filter(|recorder| recorder.trigger()).collect();
    // A directory that cannot be made shows in the files that are missing.
    let _refused = fs::create_dir_all(dir);
    let next = AtomicUsize::new(0);
    let found = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME.min(targets.len()) {
            scope.spawn(|| {
                while let Some((at, target)) = take(&next, targets) {
                    let one = inspect(tools, *target, dir, deadline);
                    found.lock().unwrap_or_else(PoisonError::into_inner).push((at, one));
                }
            });
        }
    });
    wait_for_dumps(&triggered, triggered_at, deadline.min(Instant::now() + DUMP_WAIT));
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort_by_key(|(at, _)| *at);
    let ranks = found.into_iter().map(|(at, mut one)| {
        let since = proc::started(one.pid);
        one.recorder = since.and_then(|since| recorders[at].dump(since)).map(Path::to_owned);
        one
    });
    Stacks { ranks: ranks.collect() }
}

fn take<'a>(next: &AtomicUsize, targets: &'a [StackTarget]) -> Option<(usize, &'a StackTarget)> {
    let at = next.fetch_add(1, Ordering::Relaxed);
    targets.get(at).map(|target| (at, target))
}

fn inspect(tools: &Tools, target: StackTarget, dir: &Path, deadline: Instant) -> RankStack {
    let StackTarget { rank, pid } = target;
    let activity = proc::activity(pid);
    let path = dir.join(format!("rank{rank}.txt"));
    let mut one = RankStack { rank, pid, tool: None, top: activity.clone(), file: None, recorder: None };
    let opened = OpenOptions::new().create(true).truncate(true).write(true).open(&path).and_then(|file| {
        drop(file);
        // The file is appended to by this process and by the tools.
        OpenOptions::new().append(true).open(&path)
    });
    let Ok(mut file) = opened else { return one };
    // A failed write leaves a gap in the file; the summary still has its line.
    let _full =
        write!(file, "rank {rank}, process {pid}: {activity}\n\nThreads, as the kernel tells:\n{}", proc::threads(pid));
    let written = proc::written_stack(pid);
    let own = written.as_ref().and_then(|text| frames::top(text, pid));
    if let Some(text) = written {
        let _full = write!(file, "\nas the process wrote itself:\n{text}");
    }
    one.top = own.clone().unwrap_or(one.top);
    for tool in tools.for_process(pid, proc::is_python(pid), own.is_none()) {
        if Instant::now() >= deadline {
            let _full = writeln!(file, "\nno time left for {}", tool.name);
            break;
        }
        if let Ok(Some(top)) = run_tool(&tool, pid, &mut file, deadline, &path) {
            one.tool = Some(tool.name);
            one.top = own.unwrap_or(top);
            break;
        }
    }
    one.file = Some(path);
    one
}

/// Runs one tool; returns the innermost frames when it printed any.
fn run_tool(tool: &Tool, pid: u32, file: &mut File, deadline: Instant, path: &Path) -> io::Result<Option<String>> {
    writeln!(file, "\n{}:", tool.name)?;
    let from = file.metadata()?.len();
    match tool.run(file, deadline) {
        ToolOutcome::Ended => {}
        ToolOutcome::Missing => writeln!(file, "not installed")?,
        ToolOutcome::TimedOut => writeln!(file, "\nstopped: it took too long")?,
        ToolOutcome::Failed(error) => writeln!(file, "cannot be run: {error}")?,
    }
    let text = fs::read(path)?;
    let output = text.get(usize::try_from(from).unwrap_or(usize::MAX)..).unwrap_or_default();
    Ok(frames::top(&String::from_utf8_lossy(output), pid))
}

/// Waits until each of these recorders has written a dump after `since`.
fn wait_for_dumps(recorders: &[&Recorder], since: SystemTime, deadline: Instant) {
    if recorders.is_empty() {
        return;
    }
    let Ok(watch) = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK) else { return };
    let dirs: BTreeSet<&Path> = recorders.iter().flat_map(|one| &one.dumps).filter_map(|path| path.parent()).collect();
    for dir in dirs {
        // A directory that does not exist gets no dump.
        let _absent = watch.add_watch(dir, AddWatchFlags::IN_CLOSE_WRITE | AddWatchFlags::IN_MOVED_TO);
    }
    while recorders.iter().any(|recorder| recorder.dump(since).is_none()) {
        let mut fds = [PollFd::new(watch.as_fd(), PollFlags::POLLIN)];
        if wait_ready(&mut fds, Some(deadline)).is_err() || !fds[0].any().unwrap_or(true) {
            return;
        }
        drop(watch.read_events());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{BufRead, BufReader},
        os::unix::fs::PermissionsExt,
        process::{Child, Command, Stdio},
    };

    fn absent() -> Tools {
        let name = || "/nonexistent/tool".into();
        Tools { py_spy: name(), eu_stack: name(), gdb: name() }
    }

    /// A process that waits for its standard input, and was seen to wait.
    fn waiting(dir: &Path, rank: u32) -> (Child, StackTarget) {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "echo ready; read x"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.env("TORCH_FR_DUMP_TEMP_FILE", dir.join("fr_")).env("ENN_SEAT_DIR", dir);
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let asleep = || proc::activity(child.id()).contains("sleeping");
        assert!((0..500).any(|_| {
            std::thread::park_timeout(Duration::from_millis(10));
            asleep()
        }));
        let target = StackTarget { rank, pid: child.id() };
        (child, target)
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn without_tools_the_kernel_tells() {
        let dir = tempfile::tempdir().unwrap();
        let (children, targets): (Vec<_>, Vec<_>) = (0..6).map(|rank| waiting(dir.path(), rank)).unzip();
        fs::write(dir.path().join("fr_4"), "dump").unwrap();
        let stacks = collect_with(&absent(), &targets, &dir.path().join("stacks"), Duration::from_secs(20));
        assert_eq!(stacks.ranks.iter().map(|one| one.rank).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
        for (one, line) in stacks.ranks.iter().zip(stacks.summary()) {
            assert!(line.contains("sleeping") && line.contains(" MB"), "{line}");
            let text = fs::read_to_string(one.file.as_ref().unwrap()).unwrap();
            assert!(text.contains("eu-stack:\nnot installed") && text.contains("  sh "), "{text}");
            assert_eq!(one.recorder.is_some(), one.rank == 4);
        }
        children.into_iter().for_each(end);
    }

    #[test]
    fn a_stack_that_the_process_has_written_counts() {
        let dir = tempfile::tempdir().unwrap();
        let (child, target) = waiting(dir.path(), 0);
        let text = "Thread 7 (idle): \"MainThread\"\n    after step 3, waiting for other ranks\n    wait (a.py:7)\n";
        fs::write(dir.path().join(format!("stack-{}", target.pid)), text).unwrap();
        let stacks = collect_with(&absent(), &[target], dir.path(), Duration::from_secs(20));
        let line = format!("rank 0 (process {}): after step 3, waiting for other ranks < wait (a.py:7)", target.pid);
        assert_eq!(stacks.summary(), [line]);
        end(child);
    }

    #[test]
    fn a_tool_that_hangs_is_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let slow = dir.path().join("slow");
        fs::write(&slow, "#!/bin/sh\necho begun\nexec sleep 100\n").unwrap();
        fs::set_permissions(&slow, fs::Permissions::from_mode(0o755)).unwrap();
        let (child, target) = waiting(dir.path(), 0);
        let tools = Tools { eu_stack: slow.into(), ..absent() };
        let began = Instant::now();
        let stacks = collect_with(&tools, &[target], dir.path(), Duration::from_millis(300));
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        let text = fs::read_to_string(stacks.ranks[0].file.as_ref().unwrap()).unwrap();
        assert!(
            text.contains("begun") && text.contains("took too long") && text.contains("no time left for gdb"),
            "{text}"
        );
        assert_eq!(stacks.ranks[0].tool, None);
        end(child);
    }

    #[test]
    fn a_process_that_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let stacks =
            collect_with(&absent(), &[StackTarget { rank: 0, pid: u32::MAX }], dir.path(), Duration::from_secs(5));
        assert_eq!(stacks.summary(), [format!("rank 0 (process {}): gone", u32::MAX)]);
    }
}
