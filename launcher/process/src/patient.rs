//! Writing to a descriptor that is shared with other programs: it may accept nothing for long, and another program may have
//! made it non-blocking. Either way everything is written, unless the writer is told to give up.

use super::wait_ready;
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags},
    sys::eventfd::{EfdFlags, EventFd},
};
use std::{
    io::{self, Write},
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::{Duration, Instant},
};

/// A write of at most this many bytes to a pipe that is ready does not block (PIPE_BUF).
const WRITE_BYTES_MAX: usize = 4096;

/// A signal to writers that wait; each gets a clone when it is made.
#[derive(Debug, Clone)]
pub struct GiveUp(Arc<EventFd>);

impl GiveUp {
    pub fn new() -> io::Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(Self(Arc::new(EventFd::from_flags(flags)?)))
    }

    /// Ends all waits: from now on, a write that the descriptor does not accept at once is an error.
    pub fn now(&self) {
        // A full counter has the same effect.
        let _full = self.0.write(1);
    }
}

/// A writer that waits until its descriptor accepts the bytes. Nothing is buffered.
#[derive(Debug)]
pub struct PatientWriter {
    fd: OwnedFd,
    give_up: Option<GiveUp>,
    /// Longest wait for the descriptor to accept anything; `None`: no limit.
    wait_max: Option<Duration>,
}

impl PatientWriter {
    pub fn new(fd: &impl AsFd, give_up: Option<GiveUp>) -> io::Result<Self> {
        Ok(Self { fd: fd.as_fd().try_clone_to_owned()?, give_up, wait_max: None })
    }

    /// Limits the wait for a descriptor that accepts nothing. Then writing is an error.
    #[must_use]
    pub fn within(self, wait_max: Duration) -> Self {
        Self { wait_max: Some(wait_max), ..self }
    }

    fn wait(&self) -> io::Result<()> {
        let mut fds = vec![PollFd::new(self.fd.as_fd(), PollFlags::POLLOUT)];
        fds.extend(self.give_up.iter().map(|give_up| PollFd::new(give_up.0.as_fd(), PollFlags::POLLIN)));
        wait_ready(&mut fds, self.wait_max.map(|wait| Instant::now() + wait))?;
        // A descriptor with an error counts as ready: writing returns the error.
        if fds[0].any().unwrap_or(true) { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
    }
}

impl Write for PatientWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            self.wait()?;
            match nix::unistd::write(&self.fd, &bytes[..bytes.len().min(WRITE_BYTES_MAX)]) {
                Err(Errno::EINTR | Errno::EAGAIN) => {}
                written => return Ok(written?),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    use std::io::Read;

    #[test]
    fn a_descriptor_that_does_not_block_gets_everything_all_the_same() {
        let (mut read, write) = io::pipe().unwrap();
        fcntl(&write, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        let mut writer = PatientWriter::new(&write, None).unwrap();
        drop(write);
        let bytes = vec![7; 1 << 20];
        let copy = bytes.clone();
        let writing = std::thread::spawn(move || writer.write_all(&copy));
        let mut got = Vec::new();
        read.read_to_end(&mut got).unwrap();
        writing.join().unwrap().unwrap();
        assert!(got == bytes, "{} bytes came", got.len());
    }

    #[test]
    fn a_reader_that_takes_nothing_is_waited_for_within_a_limit() {
        let (_read, write) = io::pipe().unwrap();
        let mut writer = PatientWriter::new(&write, None).unwrap().within(Duration::from_millis(20));
        assert_eq!(writer.write_all(&[1; 1 << 20]).unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn a_wait_is_given_up_and_what_is_taken_at_once_is_still_written() {
        let (mut read, write) = io::pipe().unwrap();
        let give_up = GiveUp::new().unwrap();
        let mut writer = PatientWriter::new(&write, Some(give_up.clone())).unwrap();
        let writing = std::thread::spawn(move || (writer.write_all(&[1; 1 << 20]), writer));
        // It has filled the pipe and waits.
        read.read_exact(&mut [0; 4096]).unwrap();
        give_up.now();
        let (written, mut writer) = writing.join().unwrap();
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop(write);
        let reading = std::thread::spawn(move || {
            let mut got = Vec::new();
            read.read_to_end(&mut got).map(|_| got)
        });
        while writer.write(&[2]).is_err() {
            std::thread::yield_now();
        }
        drop(writer);
        assert_eq!(reading.join().unwrap().unwrap().last(), Some(&2));
    }
}
