//! The timers of `torch.distributed.elastic.timer`: through a named pipe a worker says by when it will be out of a part of its
//! program; one that is not gets the signal that it named itself, and so fails.
//!
//! Source: torch 2.11, `torch/distributed/elastic/timer/file_based_local_timer.py`: a line of JSON for each timer, with a time
//! below zero when the part was left.
//! **Invariant:** only processes of this launch are signalled.

use nix::{
    errno::Errno,
    fcntl::{OFlag, open},
    sys::stat::Mode,
    unistd::mkfifo,
};
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    fs, io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::FileTypeExt,
    },
    path::{Path, PathBuf},
};

/// A line that is longer was not written by one write, and may hold parts of several.
const LINE_BYTES_MAX: usize = 4096;
/// Timers at a time; a worker has a few.
const TIMERS_MAX: usize = 65_536;

/// A line of the pipe.
#[derive(Debug, Deserialize)]
struct Request {
    pid: u32,
    scope_id: String,
    expiration_time: f64,
    signal: i32,
}

/// A part of a program that was not left in time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Expired {
    pub(super) pid: u32,
    /// The part, as the program calls it.
    pub(super) scope: String,
    /// The signal it named; 0 or less: none.
    pub(super) signal: i32,
}

/// The pipe and the timers. Dropping it removes the pipe.
#[derive(Debug)]
pub(super) struct Watchdog {
    path: PathBuf,
    pipe: OwnedFd,
    partial: Vec<u8>,
    /// When each expires, seconds since the Unix epoch, and its signal; by process and part.
    timers: BTreeMap<(u32, String), (f64, i32)>,
}

impl Watchdog {
    /// Makes the pipe at `path`. One that an earlier launch left there is replaced; anything else is not.
    pub(super) fn start(path: &Path) -> io::Result<Self> {
        match fs::symlink_metadata(path) {
            Ok(found) if found.file_type().is_fifo() => fs::remove_file(path)?,
            Ok(_) => return Err(io::ErrorKind::AlreadyExists.into()),
            Err(_) => {}
        }
        mkfifo(path, Mode::S_IRUSR | Mode::S_IWUSR)?;
        // Opened for writing too, so that it does not end when a worker closes its end.
        let flags = OFlag::O_RDWR | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let pipe = open(path, flags, Mode::empty())?;
        Ok(Self { path: path.to_owned(), pipe, partial: Vec::new(), timers: BTreeMap::new() })
    }

    /// Readable when a worker has said something.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }

    /// When the next timer expires, seconds since the Unix epoch.
    pub(super) fn next(&self) -> Option<f64> {
        self.timers.values().map(|(expires, _)| *expires).min_by(f64::total_cmp)
    }

    /// Takes what the workers have said; returns what cannot be understood.
    pub(super) fn read(&mut self) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut buffer = [0; LINE_BYTES_MAX];
        loop {
            match nix::unistd::read(&self.pipe, &mut buffer) {
                Ok(0) => return wrong,
                Ok(count) => wrong.extend(self.take(&buffer[..count])),
                Err(Errno::EINTR) => {}
                Err(_) => return wrong,
            }
        }
    }

    /// Removes and returns the timers that have expired at `now`, the first ones first.
    pub(super) fn expired(&mut self, now: f64) -> Vec<Expired> {
        let over = |(_, (expires, _)): &(&(u32, String), &(f64, i32))| *expires <= now;
        let mut over: Vec<_> = self
            .timers
            .iter()
            .filter(over)
            .map(|((pid, scope), timer)| (timer.0, *pid, scope.clone(), timer.1))
            .collect();
        over.sort_by(|one, other| one.0.total_cmp(&other.0));
        for (_, pid, scope, _) in &over {
            self.timers.remove(&(*pid, scope.clone()));
        }
        over.into_iter().map(|(_, pid, scope, signal)| Expired { pid, scope, signal }).collect()
    }

    /// Forgets the timers of processes that have ended.
    pub(super) fn forget(&mut self, lives: impl Fn(u32) -> bool) {
        self.timers.retain(|(pid, _), _| lives(*pid));
    }

    fn take(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut wrong = Vec::new();
        self.partial.extend_from_slice(bytes);
        while let Some(at) = memchr::memchr(b'\n', &self.partial) {
            let line: Vec<u8> = self.partial.drain(..=at).collect();
            match serde_json::from_slice::<Request>(&line) {
                Ok(request) => self.set(request),
                Err(error) => wrong.push(error.to_string()),
            }
        }
        if self.partial.len() > LINE_BYTES_MAX {
            self.partial.clear();
            wrong.push(format!("a line has more than {LINE_BYTES_MAX} bytes"));
        }
        wrong
    }

    fn set(&mut self, request: Request) {
        let key = (request.pid, request.scope_id);
        if request.expiration_time < 0.0 {
            self.timers.remove(&key);
        } else if self.timers.len() < TIMERS_MAX || self.timers.contains_key(&key) {
            self.timers.insert(key, (request.expiration_time, request.signal));
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        // A folder that is gone took it along.
        let _gone = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn line(pid: u32, scope: &str, expires: f64, signal: i32) -> String {
        format!(
            "{{\"version\": 1, \"pid\": {pid}, \"scope_id\": \"{scope}\", \"expiration_time\": {expires}, \"signal\": {signal}}}\n"
        )
    }

    fn expired(pid: u32, scope: &str, signal: i32) -> Expired {
        Expired { pid, scope: scope.into(), signal }
    }

    #[test]
    fn timers_expire_unless_their_part_was_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("timer");
        let mut watchdog = Watchdog::start(&path).unwrap();
        let mut pipe = fs::File::options().write(true).open(&path).unwrap();
        assert_eq!((watchdog.read().len(), watchdog.next()), (0, None));
        let said =
            [line(7, "late", 20.0, 9), line(7, "soon", 10.0, 15), line(8, "left", 10.0, 9), line(8, "left", -1.0, 0)];
        pipe.write_all(said.concat().as_bytes()).unwrap();
        assert!(watchdog.read().is_empty());
        assert_eq!(watchdog.next(), Some(10.0));
        assert_eq!(watchdog.expired(9.0), []);
        assert_eq!(watchdog.expired(30.0), [expired(7, "soon", 15), expired(7, "late", 9)]);
        assert_eq!(watchdog.next(), None, "each expires once");
        pipe.write_all(line(7, "again", 10.0, 9).as_bytes()).unwrap();
        watchdog.read();
        watchdog.forget(|pid| pid != 7);
        assert_eq!(watchdog.next(), None);
        drop(watchdog);
        assert!(!path.exists());
    }

    #[test]
    fn what_cannot_be_understood_is_told_and_does_not_grow() {
        let dir = tempfile::tempdir().unwrap();
        let mut watchdog = Watchdog::start(&dir.path().join("timer")).unwrap();
        let rubbish = "x".repeat(2 * LINE_BYTES_MAX);
        assert_eq!(watchdog.take(rubbish.as_bytes()).len(), 1);
        assert!(watchdog.partial.is_empty());
        assert_eq!(watchdog.take(format!("{{}}\n{}", line(1, "a", 5.0, 9)).as_bytes()).len(), 1);
        assert_eq!(watchdog.next(), Some(5.0));
    }

    #[test]
    fn a_pipe_of_an_earlier_launch_is_replaced_and_a_file_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("timer");
        std::mem::forget(Watchdog::start(&path).unwrap());
        assert!(Watchdog::start(&path).is_ok());
        fs::write(&path, "mine").unwrap();
        assert_eq!(Watchdog::start(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    }
}
