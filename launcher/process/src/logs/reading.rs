//! Reads the logs of a run, and follows them while it goes on: `enn logs`.
//!
//! Waits on inotify; files and attempts may appear later. A run is not followed further when its journal says that it ended,
//! or when its launcher is gone.

use super::{
    LogReadError,
    find::{LogFile, LogListing, LogLocation, find},
    growing::GrowingFile,
    selection::LogSelection,
};
use crate::run_dir;
use enn_common::event::{Event, EventKind};
use nix::{
    poll::{PollFd, PollFlags, poll},
    sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent},
};
use std::{
    collections::BTreeSet,
    fs::File,
    io,
    os::{fd::AsFd, unix::fs::FileExt},
    path::{Path, PathBuf},
    time::SystemTime,
};

/// File name of the run's journal, beside its logs.
const JOURNAL: &str = "events.jsonl";
/// Bytes at the end of the journal in which its last line is searched.
const JOURNAL_END_BYTES: u64 = 64 << 10;
/// The kernel reports that the launcher's lock file was closed a moment before it releases the lock; milliseconds.
const UNLOCK_WAIT_MS: u16 = 100;

#[derive(Debug)]
pub struct LogReader {
    place: LogLocation,
    wanted: LogSelection,
    /// The first attempt that is shown; `None` until one exists.
    from: Option<u32>,
    files: Vec<GrowingFile>,
    known: BTreeSet<PathBuf>,
    watch: Option<DirWatch>,
}

#[derive(Debug)]
struct DirWatch {
    inotify: Inotify,
    dirs: BTreeSet<PathBuf>,
}

impl LogReader {
    /// Finds the logs, of which each existing one is read from its last `last` lines on. Without `follow`, it is an
    /// error when none exist.
    pub fn open(
        place: LogLocation,
        wanted: LogSelection,
        last: Option<usize>,
        follow: bool,
    ) -> Result<Self, LogReadError> {
        let watch = follow.then(DirWatch::new).transpose()?;
        let (files, known) = Default::default();
        let mut reading = Self { place, wanted, from: None, files, known, watch };
        let found = reading.look(last)?;
        if !follow && reading.files.is_empty() {
            let wanted = reading.wanted.clone();
            let LogListing { attempts, ranks, .. } = found;
            let root = reading.place.root;
            return Err(LogReadError::None { root, wanted, attempts, ranks });
        }
        Ok(reading)
    }

    /// Passes all output to `give`, and when following, also what is written until the run has ended.
    pub fn read(&mut self, mut give: impl FnMut(&LogFile, &[u8]) -> io::Result<()>) -> Result<(), LogReadError> {
        let mut made = true;
        loop {
            // Asked first: what was written before the end is read after it.
            let ended = self.watch.is_none() || ended(&self.place.root);
            if self.watch.is_some() && (made || ended) {
                self.look(None)?;
            }
            for file in &mut self.files {
                let mut given = Ok(());
                let read = file.read(|log, bytes| {
                    given = give(log, bytes);
                    given.as_ref().map_err(|error| error.kind().into()).copied()
                });
                given.map_err(LogReadError::Output)?;
                read.map_err(|source| LogReadError::Read { path: file.log.path.clone(), source })?;
            }
            match &self.watch {
                Some(watch) if !ended => made = watch.wait()?,
                _ => return Ok(()),
            }
        }
    }

    /// Finds new files and opens them.
    fn look(&mut self, last: Option<usize>) -> Result<LogListing, LogReadError> {
        let mut found = find(&self.place, &self.wanted, self.from);
        if let Some(watch) = &mut self.watch {
            // What appeared in a directory before it was watched is found by looking again.
            while watch.add(&found.dirs)? {
                found = find(&self.place, &self.wanted, self.from);
            }
        }
        self.from = self.from.or(found.attempts.last().copied());
        for log in found.files.drain(..) {
            if self.known.insert(log.path.clone()) {
                let path = log.path.clone();
                let growing = GrowingFile::open(log, last).map_err(|source| LogReadError::Read { path, source })?;
                self.files.push(growing);
            }
        }
        Ok(found)
    }
}

impl DirWatch {
    fn new() -> Result<Self, LogReadError> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC).map_err(|errno| LogReadError::Watch(errno.into()))?;
        Ok(Self { inotify, dirs: BTreeSet::new() })
    }

    /// Watches these directories and returns whether any is new.
    fn add(&mut self, dirs: &[PathBuf]) -> Result<bool, LogReadError> {
        let mut new = false;
        for dir in dirs {
            if self.dirs.contains(dir) {
                continue;
            }
            let made = AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO;
            let flags = made | AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_CLOSE_WRITE;
            match self.inotify.add_watch(dir, flags) {
                Ok(_) => new |= self.dirs.insert(dir.clone()),
                // It was there a moment ago: an attempt that is made anew.
                Err(nix::errno::Errno::ENOENT) => {}
                Err(errno) => return Err(LogReadError::Watch(errno.into())),
            }
        }
        Ok(new)
    }

    /// Waits until a file was written or made, and returns whether a file or directory may have been made.
    fn wait(&self) -> Result<bool, LogReadError> {
        let events = match self.inotify.read_events() {
            Ok(events) => events,
            Err(nix::errno::Errno::EINTR) => return Ok(true),
            Err(errno) => return Err(LogReadError::Watch(errno.into())),
        };
        let lock = run_dir::lock_path(Path::new(""));
        let unlocked = |event: &InotifyEvent| {
            event.mask.contains(AddWatchFlags::IN_CLOSE_WRITE) && event.name.as_deref() == Some(lock.as_os_str())
        };
        if events.iter().any(unlocked) {
            // Whatever comes first, time or more events: it is looked again after it.
            let _either = poll(&mut [PollFd::new(self.inotify.as_fd(), PollFlags::POLLIN)], UNLOCK_WAIT_MS);
        }
        let written = AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_CLOSE_WRITE;
        Ok(events.iter().any(|event| !event.mask.intersects(written)))
    }
}

/// Returns whether the run is over: its launcher is gone, or its journal records the end. A directory of logs alone
/// never is.
fn ended(root: &Path) -> bool {
    let gone = || run_dir::lock_path(root).is_file() && !run_dir::is_living(root);
    has_ended(root) || gone()
}

/// Returns when the run's journal was last written to; without a journal, when the directory last changed.
pub fn last_written(root: &Path) -> Option<SystemTime> {
    let written = |path: &Path| std::fs::metadata(path).and_then(|found| found.modified()).ok();
    written(&root.join(JOURNAL)).or_else(|| written(root))
}

/// Returns whether the last line of the run's journal records the end of the run.
pub fn has_ended(root: &Path) -> bool {
    let last_line = || -> io::Result<Option<Event>> {
        let file = File::open(root.join(JOURNAL))?;
        let length = file.metadata()?.len();
        let mut end = vec![0; usize::try_from(length.min(JOURNAL_END_BYTES)).unwrap_or(0)];
        let from = length - end.len() as u64;
        file.read_exact_at(&mut end, from)?;
        let line = end.trim_ascii_end().rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
        Ok(serde_json::from_slice(line).ok())
    };
    matches!(last_line(), Ok(Some(Event { what: EventKind::RunEnded { .. }, .. })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, io::Write, sync::mpsc};

    fn at(root: &Path) -> LogLocation {
        LogLocation { root: root.to_owned(), launch: None }
    }

    fn all() -> LogSelection {
        LogSelection { ranks: Vec::new(), attempt: None, out: true, err: true }
    }

    #[test]
    fn what_is_not_there_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let error = LogReader::open(at(dir.path()), all(), None, false).unwrap_err().to_string();
        assert!(error.contains("no logs"), "{error}");
        fs::create_dir_all(dir.path().join("logs/0/3")).unwrap();
        fs::write(dir.path().join("logs/0/3/stdout.log"), "x").unwrap();
        let wanted = LogSelection { ranks: vec![7], ..all() };
        let error = LogReader::open(at(dir.path()), wanted, None, false).unwrap_err().to_string();
        assert!(error.contains("rank 7") && error.contains("ranks: 3"), "{error}");
        let wanted = LogSelection { attempt: Some(4), ..all() };
        let error = LogReader::open(at(dir.path()), wanted, None, false).unwrap_err().to_string();
        assert!(error.contains("attempt 4") && error.contains("attempts: 0"), "{error}");
    }

    #[test]
    fn a_run_is_followed_from_before_its_logs_to_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().to_owned();
        let (lines, seen) = mpsc::channel();
        let follower = std::thread::spawn({
            let root = root.clone();
            move || {
                let mut reading = LogReader::open(at(&root), all(), None, true).unwrap();
                let give = |log: &LogFile, bytes: &[u8]| {
                    let text = String::from_utf8_lossy(bytes).into_owned();
                    lines.send((log.attempt, log.rank, log.stream(), text)).unwrap();
                    Ok(())
                };
                reading.read(give).unwrap();
            }
        });
        let next = || seen.recv_timeout(std::time::Duration::from_secs(20)).unwrap();
        let append = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::File::options().append(true).create(true).open(path).unwrap().write_all(text.as_bytes()).unwrap();
        };
        append("logs/x_1/attempt_0/0/stdout.log", "a\n");
        assert_eq!(next(), (0, 0, "stdout", "a\n".into()));
        append("logs/x_1/attempt_0/0/stdout.log", "b\n");
        assert_eq!(next(), (0, 0, "stdout", "b\n".into()));
        append("logs/x_1/attempt_1/5/stderr.log", "c\n");
        assert_eq!(next(), (1, 5, "stderr", "c\n".into()));
        append(JOURNAL, "{\"time\":1.0,\"event\":\"warned\",\"message\":\"x\"}\n");
        append("logs/x_1/attempt_1/5/stderr.log", "d\n");
        assert_eq!(next(), (1, 5, "stderr", "d\n".into()));
        append(
            JOURNAL,
            "{\"time\":2.0,\"event\":\"run_ended\",\"code\":0,\"seconds\":1.0,\"restarts\":0,\"rounds\":1}\n",
        );
        follower.join().unwrap();
    }

    #[test]
    fn a_run_whose_launcher_was_killed_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().to_owned();
        let run = run_dir::RunDir::open(&root).unwrap();
        fs::create_dir_all(root.join("logs/0/0")).unwrap();
        fs::write(root.join("logs/0/0/stdout.log"), "x").unwrap();
        let (lines, seen) = mpsc::channel();
        let follower = std::thread::spawn(move || {
            let mut reading = LogReader::open(at(&root), all(), None, true).unwrap();
            reading.read(|_, _| lines.send(()).map_err(io::Error::other)).unwrap();
        });
        seen.recv_timeout(std::time::Duration::from_secs(20)).unwrap();
        drop(run);
        follower.join().unwrap();
    }
}
