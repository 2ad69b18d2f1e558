//! The launcher's own standard output and error, shared by all workers.
//!
//! Bytes are queued and written while the console accepts them. A slow console makes the workers wait, as it would without
//! the launcher; a closed one is reported once and then ignored. **Invariant:** a write never ends inside a line unless the
//! line alone is longer than a write may be.

use super::{
    LogError,
    screen::{Screen, StreamId},
    stream_name::StreamName,
};
use memchr::memrchr;
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::stat::{SFlag, fstat, stat},
};
use std::{
    io::IsTerminal,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

/// Bytes of one write to a pipe or terminal: a write of at most PIPE_BUF bytes is atomic, and does not block when the
/// descriptor is ready.
const WRITE_BYTES_MAX: usize = 4096;
/// Bytes of one write to a regular file.
const FILE_WRITE_BYTES_MAX: usize = 256 << 10;
/// Queued bytes above which the streams shown on this console are no longer read.
const QUEUE_BYTES_FULL: usize = 256 << 10;
/// Queued bytes below which the streams are read again.
const QUEUE_BYTES_LOW: usize = 64 << 10;

/// A console of the launcher and the bytes queued for it.
#[derive(Debug)]
pub(super) struct Console {
    fd: OwnedFd,
    pub(super) name: &'static str,
    /// A regular file takes everything at once and cannot be waited for.
    regular: bool,
    screen: Screen,
    queue: Vec<u8>,
    written: usize,
    full: bool,
    closed: bool,
    /// Number of bytes that were discarded because the console was given up.
    lost: u64,
    given_up: bool,
    /// Whether the descriptor is being waited for.
    pub(super) watched: bool,
}

impl Console {
    fn new(fd: OwnedFd, name: &'static str) -> Self {
        let kind = fstat(&fd).map_or(SFlag::S_IFREG, |stat| SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT);
        Self {
            fd,
            name,
            regular: kind == SFlag::S_IFREG,
            screen: Screen::default(),
            queue: Vec::new(),
            written: 0,
            full: false,
            closed: false,
            lost: 0,
            given_up: false,
            watched: false,
        }
    }

    pub(super) fn show(&mut self, by: StreamId, prefix: &[u8], bytes: &[u8]) {
        if !self.closed {
            self.screen.show(by, prefix, bytes, &mut self.queue);
        } else if self.given_up {
            self.lost += bytes.len() as u64;
        }
    }

    /// Discards the queue and writes nothing more, if anything is queued: the console's reader does not read, and the
    /// launcher no longer waits for it.
    pub(super) fn give_up(&mut self) {
        if self.waiting() {
            self.lost += self.backlog();
            self.given_up = true;
            self.close();
        }
    }

    /// Returns the number of queued bytes.
    pub(super) fn backlog(&self) -> u64 {
        (self.queue.len() - self.written) as u64
    }

    fn close(&mut self) {
        self.closed = true;
        self.queue = Vec::new();
        self.written = 0;
        self.full = false;
    }

    /// Ends an unfinished line before another program writes to this console.
    pub(super) fn finish_line(&mut self) {
        self.screen.finish(&mut self.queue);
    }

    /// Ends an unfinished line where no program parses the output: on a terminal, or after a prefix of the launcher.
    pub(super) fn finish_line_for_people(&mut self) {
        if self.screen.open_prefixed() || self.fd.is_terminal() {
            self.finish_line();
        }
    }

    /// Writes as many bytes as the console accepts.
    pub(super) fn write(&mut self) -> Result<(), LogError> {
        while self.waiting() && self.ready() {
            match nix::unistd::write(&self.fd, self.next()) {
                Ok(count) => self.written += count,
                Err(Errno::EINTR) => {}
                // Somebody made the shared descriptor non-blocking; it will be ready again.
                Err(Errno::EAGAIN) => break,
                Err(errno) => {
                    self.close();
                    return Err(LogError::Console { name: self.name, source: errno.into() });
                }
            }
        }
        self.tidy();
        Ok(())
    }

    pub(super) fn waiting(&self) -> bool {
        self.written < self.queue.len()
    }

    /// Returns whether the queue is so long that the streams should not be read.
    pub(super) fn full(&self) -> bool {
        self.full || self.queue.len() - self.written >= QUEUE_BYTES_FULL
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Returns the next bytes to write: whole lines while they fit.
    fn next(&self) -> &[u8] {
        let max = if self.regular { FILE_WRITE_BYTES_MAX } else { WRITE_BYTES_MAX };
        let rest = &self.queue[self.written..];
        if rest.len() <= max {
            return rest;
        }
        &rest[..memrchr(b'\n', &rest[..max]).map_or(max, |at| at + 1)]
    }

    fn ready(&self) -> bool {
        if self.regular {
            return true;
        }
        let mut fds = [PollFd::new(self.fd.as_fd(), PollFlags::POLLOUT)];
        // A console that has an error is written to, so that the error is reported.
        poll(&mut fds, PollTimeout::ZERO).is_ok_and(|count| count > 0)
    }

    fn tidy(&mut self) {
        if !self.waiting() {
            // The memory of a burst is given back; what a usual line needs is kept.
            self.queue.clear();
            self.queue.shrink_to(WRITE_BYTES_MAX);
            self.written = 0;
        } else if self.written >= QUEUE_BYTES_LOW {
            self.queue.drain(..self.written);
            self.written = 0;
        }
        let waiting = self.queue.len() - self.written;
        self.full = waiting >= QUEUE_BYTES_FULL || (self.full && waiting > QUEUE_BYTES_LOW);
    }
}

/// Properties of the consoles that decide how the workers' streams are set up.
#[derive(Debug)]
pub(super) struct ConsoleKinds {
    /// Descriptors of the consoles that are terminals, by [`StreamName::index`].
    pub(super) terminals: [Option<OwnedFd>; 2],
    /// Whether both consoles are the same file, so that the order of writes to them is visible.
    pub(super) same: bool,
}

impl ConsoleKinds {
    pub(super) fn of(out: &OwnedFd, err: &OwnedFd) -> Self {
        let terminal = |fd: &OwnedFd| fd.try_clone().ok().filter(|_| fd.is_terminal());
        // Nobody sees an order in /dev/null; apart, the log files say what is what.
        let nowhere = stat("/dev/null").ok().map(|null| null.st_rdev);
        let same = same_file(out, err) && fstat(out).is_ok_and(|found| Some(found.st_rdev) != nowhere);
        Self { terminals: [terminal(out), terminal(err)], same }
    }
}

fn same_file(one: &OwnedFd, other: &OwnedFd) -> bool {
    let id = |fd: &OwnedFd| fstat(fd).map(|stat| (stat.st_dev, stat.st_ino)).ok();
    id(one).is_some() && id(one) == id(other)
}

/// Both consoles, or one when both are the same file.
#[derive(Debug)]
pub(super) struct Consoles {
    all: Vec<Console>,
}

impl Consoles {
    pub(super) fn new(out: OwnedFd, err: OwnedFd) -> Self {
        let same = same_file(&out, &err);
        let name = if same { "standard output and error" } else { "standard output" };
        let mut all = vec![Console::new(out, name)];
        if !same {
            all.push(Console::new(err, "standard error"));
        }
        Self { all }
    }

    pub(super) fn of(&mut self, name: StreamName) -> &mut Console {
        let at = match name {
            StreamName::Out => 0,
            StreamName::Err => self.all.len() - 1,
        };
        &mut self.all[at]
    }

    pub(super) fn get(&self, name: StreamName) -> Option<&Console> {
        self.all.get(name.index()).or(self.all.first())
    }

    pub(super) fn behind(&self) -> impl Iterator<Item = &Console> {
        self.all.iter().filter(|console| console.waiting())
    }

    /// Returns the number of bytes that were discarded.
    pub(super) fn lost(&self) -> u64 {
        self.all.iter().map(|console| console.lost).sum()
    }

    pub(super) fn each(&mut self) -> impl Iterator<Item = &mut Console> {
        self.all.iter_mut()
    }
}
