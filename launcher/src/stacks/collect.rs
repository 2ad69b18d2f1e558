//! Collects the stacks of several processes, a few at a time, into one file each.

use super::{
    Tools, frames, proc,
    recorder::Recorder,
    tool::{Outcome, Tool},
};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
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

/// Processes looked at at a time: tools use a lot of memory and stop what they look at.
const AT_A_TIME: usize = 4;
/// Time for the flight recorder to write after it was asked; it looks at its pipe about once a second.
const DUMP_WAIT: Duration = Duration::from_secs(5);

/// A process to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// Global rank.
    pub rank: u32,
    /// Process.
    pub pid: u32,
}

/// What is known of one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankStack {
    /// Global rank.
    pub rank: u32,
    /// Process.
    pub pid: u32,
    /// The tool that gave a stack; `None`: only what the kernel tells.
    pub tool: Option<&'static str>,
    /// Innermost frames of its main thread, or its state.
    pub top: String,
    /// Everything, when it could be written.
    pub file: Option<PathBuf>,
    /// The dump of its flight recorder.
    pub recorder: Option<PathBuf>,
}

/// What all of them were doing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stacks {
    /// In the order of the targets.
    pub ranks: Vec<RankStack>,
}

impl Stacks {
    /// One line for each rank.
    #[must_use]
    pub fn summary(&self) -> Vec<String> {
        let line = |one: &RankStack| {
            let dump = one.recorder.as_ref().map(|path| format!("; flight recorder: {}", path.display()));
            format!("rank {} (process {}): {}{}", one.rank, one.pid, one.top, dump.unwrap_or_default())
        };
        self.ranks.iter().map(line).collect()
    }
}

/// Looks at all targets and writes `rank<N>.txt` into `dir`, which is made. Takes at most `limit`, and a moment.
#[must_use]
pub fn collect(targets: &[Target], dir: &Path, limit: Duration) -> Stacks {
    collect_with(&Tools::default(), targets, dir, limit)
}

/// The same with other tools.
#[must_use]
pub fn collect_with(tools: &Tools, targets: &[Target], dir: &Path, limit: Duration) -> Stacks {
    let deadline = Instant::now() + limit;
    let recorders: Vec<Recorder> = targets
        .iter()
        .map(|target| proc::environment(target.pid).map(|text| Recorder::new(&text, target.rank)).unwrap_or_default())
        .collect();
    let asked_at = SystemTime::now();
    // First of all: the dumps are written while the stacks are collected.
    let asked: Vec<&Recorder> = recorders.iter().filter(|recorder| recorder.trigger()).collect();
    // A directory that cannot be made shows in each file that cannot.
    let _refused = fs::create_dir_all(dir);
    let next = AtomicUsize::new(0);
    let found = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME.min(targets.len()) {
            scope.spawn(|| {
                while let Some((at, target)) = take(&next, targets) {
                    let one = look(tools, *target, dir, deadline);
                    found.lock().unwrap_or_else(PoisonError::into_inner).push((at, one));
                }
            });
        }
    });
    wait_for_dumps(&asked, asked_at, deadline.min(Instant::now() + DUMP_WAIT));
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort_by_key(|(at, _)| *at);
    let ranks = found.into_iter().map(|(at, mut one)| {
        let since = proc::started(one.pid);
        one.recorder = since.and_then(|since| recorders[at].dump(since)).map(Path::to_owned);
        one
    });
    Stacks { ranks: ranks.collect() }
}

fn take<'a>(next: &AtomicUsize, targets: &'a [Target]) -> Option<(usize, &'a Target)> {
    let at = next.fetch_add(1, Ordering::Relaxed);
    targets.get(at).map(|target| (at, target))
}

fn look(tools: &Tools, target: Target, dir: &Path, deadline: Instant) -> RankStack {
    let Target { rank, pid } = target;
    let doing = proc::doing(pid);
    let path = dir.join(format!("rank{rank}.txt"));
    let mut one = RankStack { rank, pid, tool: None, top: doing.clone(), file: None, recorder: None };
    let opened = OpenOptions::new().create(true).truncate(true).write(true).open(&path).and_then(|file| {
        drop(file);
        // Appended to by us and by the tools.
        OpenOptions::new().append(true).open(&path)
    });
    let Ok(mut file) = opened else { return one };
    // What cannot be written is missing in the file; the summary has its line.
    let _full =
        write!(file, "rank {rank}, process {pid}: {doing}\n\nThreads, as the kernel tells:\n{}", proc::threads(pid));
    for tool in tools.for_process(pid, proc::is_python(pid)) {
        if Instant::now() >= deadline {
            let _full = writeln!(file, "\nno time left for {}", tool.name);
            break;
        }
        if let Ok(Some(top)) = ask(&tool, pid, &mut file, deadline, &path) {
            one.tool = Some(tool.name);
            one.top = top;
            break;
        }
    }
    one.file = Some(path);
    one
}

/// Runs one tool; the innermost frames when it gave any.
fn ask(tool: &Tool, pid: u32, file: &mut File, deadline: Instant, path: &Path) -> io::Result<Option<String>> {
    writeln!(file, "\n{}:", tool.name)?;
    let from = file.metadata()?.len();
    match tool.run(file, deadline) {
        Outcome::Ended => {}
        Outcome::Missing => writeln!(file, "not installed")?,
        Outcome::Late => writeln!(file, "\nstopped: it took too long")?,
        Outcome::Failed(error) => writeln!(file, "cannot be run: {error}")?,
    }
    let text = fs::read(path)?;
    let said = text.get(usize::try_from(from).unwrap_or(usize::MAX)..).unwrap_or_default();
    Ok(frames::top(&String::from_utf8_lossy(said), pid))
}

/// Waits until each of these recorders has written a dump after `since`.
fn wait_for_dumps(recorders: &[&Recorder], since: SystemTime, deadline: Instant) {
    if recorders.is_empty() {
        return;
    }
    let Ok(watch) = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK) else { return };
    let dirs: BTreeSet<&Path> = recorders.iter().flat_map(|one| &one.dumps).filter_map(|path| path.parent()).collect();
    for dir in dirs {
        // A directory that is not there gets no dump.
        let _absent = watch.add_watch(dir, AddWatchFlags::IN_CLOSE_WRITE | AddWatchFlags::IN_MOVED_TO);
    }
    while recorders.iter().any(|recorder| recorder.dump(since).is_none()) {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::new(watch.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)) {
            Ok(0) if Instant::now() >= deadline => return,
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => drop(watch.read_events()),
            Err(_) => return,
        }
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
    fn waiting(dir: &Path, rank: u32) -> (Child, Target) {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "echo ready; read x"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.env("TORCH_FR_DUMP_TEMP_FILE", dir.join("fr_"));
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let asleep = || proc::doing(child.id()).contains("sleeping");
        assert!((0..500).any(|_| {
            std::thread::park_timeout(Duration::from_millis(10));
            asleep()
        }));
        let target = Target { rank, pid: child.id() };
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
        let stacks = collect_with(&absent(), &[Target { rank: 0, pid: u32::MAX }], dir.path(), Duration::from_secs(5));
        assert_eq!(stacks.summary(), [format!("rank 0 (process {}): gone", u32::MAX)]);
    }
}
