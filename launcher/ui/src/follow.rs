//! The journal of a run followed as it grows: the same events, live or long after.
//!
//! **Invariant:** every whole line is handed out once, in order; half a line waits for its end. Nothing is written.

use super::{error::JournalError, journal};
use enn_common::event::Event;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use std::{
    fs::File,
    io::{BufRead, BufReader, Seek, SeekFrom},
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
};

const BLOCK_BYTES: usize = 64 << 10;

/// Reads a journal and goes on as it grows.
#[derive(Debug)]
pub struct Follower {
    file: File,
    path: PathBuf,
    /// Whole lines handed out, bytes.
    read_bytes: u64,
    lines: u64,
    unreadable: Vec<u64>,
    watch: Option<Inotify>,
}

impl Follower {
    /// Opens the journal of `run_dir`. The launcher keeps `held` open for writing as long as it lives. Where the system
    /// cannot watch files, the follower reads, but [`Self::fd`] returns `None`.
    ///
    /// # Errors
    /// There is no journal, or it may not be read.
    pub fn open(run_dir: &Path, held: &Path) -> Result<Self, JournalError> {
        let path = run_dir.join(journal::FILE);
        let unopened = |source| JournalError::Open { path: path.clone(), what: "read", source };
        let file = File::open(&path).map_err(unopened)?;
        let watch = watch(&path).ok();
        // That it is closed says that the launcher is gone; without it the end of a killed launcher wakes nobody.
        let _not_there = watch.as_ref().map(|watch| watch.add_watch(held, AddWatchFlags::IN_CLOSE_WRITE));
        Ok(Self { file, path, read_bytes: 0, lines: 0, unreadable: Vec::new(), watch })
    }

    /// Passes the events since the last call to `each`.
    ///
    /// # Errors
    /// The disk fails.
    pub fn read(&mut self, mut each: impl FnMut(Event)) -> Result<(), JournalError> {
        self.watch.iter().for_each(drain);
        let path = &self.path;
        let failed = |line| move |source| JournalError::Read { path: path.clone(), line, source };
        let mut reader = BufReader::with_capacity(BLOCK_BYTES, &self.file);
        reader.seek(SeekFrom::Start(self.read_bytes)).map_err(failed(self.lines))?;
        let mut line = Vec::new();
        loop {
            line.clear();
            let bytes = reader.read_until(b'\n', &mut line).map_err(failed(self.lines))?;
            // Half a line is read again when it is whole.
            if line.pop() != Some(b'\n') {
                return Ok(());
            }
            self.read_bytes += bytes as u64;
            self.lines += 1;
            match serde_json::from_slice(&line) {
                Ok(event) => each(event),
                Err(_) => self.unreadable.push(self.lines),
            }
        }
    }

    /// Returns the numbers of the lines that could not be parsed.
    pub fn unreadable(&self) -> &[u64] {
        &self.unreadable
    }

    /// Returns a descriptor that becomes readable when the journal grows or the launcher releases the run; `None` when
    /// the system cannot watch files.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.watch.as_ref().map(AsFd::as_fd)
    }
}

/// Watches a file for what is appended to it. Nothing that is done with the result blocks.
pub(crate) fn watch(path: &Path) -> nix::Result<Inotify> {
    let watch = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
    watch.add_watch(path, AddWatchFlags::IN_MODIFY)?;
    Ok(watch)
}

/// Empties the queue: what happened is seen by reading the file.
pub(crate) fn drain(watch: &Inotify) {
    while watch.read_events().is_ok_and(|events| !events.is_empty()) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RunView;
    use crate::model::tests::{events, view_after};
    use nix::poll::{PollFd, PollFlags, poll};
    use std::io::Write;

    fn taken(follower: &mut Follower, view: &mut RunView) -> usize {
        let mut count = 0;
        follower
            .read(|event| {
                view.apply(&event);
                count += 1;
            })
            .unwrap();
        count
    }

    #[test]
    fn lines_are_handed_out_once_and_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(journal::FILE);
        let mut file = File::create(&path).unwrap();
        let mut follower = Follower::open(dir.path(), &dir.path().join(".held")).unwrap();
        let mut view = RunView::default();
        let all = events();
        let mut seen = 0;
        for event in &all {
            let line = serde_json::to_string(event).unwrap();
            let (first, second) = line.split_at(line.len() / 2);
            file.write_all(first.as_bytes()).unwrap();
            assert_eq!(taken(&mut follower, &mut view), 0);
            file.write_all(second.as_bytes()).unwrap();
            file.write_all(b"\n").unwrap();
            seen += taken(&mut follower, &mut view);
        }
        file.write_all(b"{\"time\":1,\"event\":\"teleported\"}\n").unwrap();
        assert_eq!((taken(&mut follower, &mut view), seen), (0, all.len()));
        assert_eq!(follower.unreadable(), [all.len() as u64 + 1]);
        assert_eq!(view, view_after(&all));
    }

    #[test]
    fn growth_and_the_end_of_the_launcher_wake_the_reader() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = File::create(dir.path().join(journal::FILE)).unwrap();
        let lock = File::create(dir.path().join(".held")).unwrap();
        let mut follower = Follower::open(dir.path(), &dir.path().join(".held")).unwrap();
        let ready = |follower: &Follower, wait_ms: u16| {
            let fd = follower.fd().expect("a system with inotify");
            poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], wait_ms).unwrap() == 1
        };
        assert!(!ready(&follower, 0));
        file.write_all(b"\n").unwrap();
        assert!(ready(&follower, 5_000));
        follower.read(|_| ()).unwrap();
        assert!(!ready(&follower, 0));
        drop(lock);
        assert!(ready(&follower, 5_000));
    }
}
