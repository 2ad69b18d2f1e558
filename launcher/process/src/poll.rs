//! Waiting on several descriptors until one is ready or a deadline comes.

use super::Signals;
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::Signal,
};
use std::{
    io::{self, PipeReader},
    os::fd::AsFd,
    time::Instant,
};

/// Waits until a descriptor is ready or the deadline has passed; signals that are handled elsewhere do not end the wait.
pub fn wait_ready(fds: &mut [PollFd<'_>], deadline: Option<Instant>) -> io::Result<()> {
    loop {
        match poll(fds, timeout(deadline)) {
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Returns the next signal; `None` when the other end of the pipe was closed first.
pub fn next_signal(signals: &mut Signals, pipe: Option<&PipeReader>) -> io::Result<Option<Signal>> {
    loop {
        let mut fds = vec![PollFd::new(signals.fd(), PollFlags::POLLIN)];
        fds.extend(pipe.map(|pipe| PollFd::new(pipe.as_fd(), PollFlags::POLLIN)));
        wait_ready(&mut fds, None)?;
        let closed = fds.get(1).is_some_and(|fd| fd.any().unwrap_or(true));
        if let Some(signal) = signals.take().first() {
            return Ok(Some(*signal));
        }
        if closed {
            return Ok(None);
        }
    }
}

/// Returns the time until the deadline, rounded up so that it has passed when poll returns.
fn timeout(deadline: Option<Instant>) -> PollTimeout {
    let Some(deadline) = deadline else { return PollTimeout::NONE };
    let milliseconds = deadline.saturating_duration_since(Instant::now()).as_micros().div_ceil(1000);
    PollTimeout::try_from(milliseconds).unwrap_or(PollTimeout::MAX)
}
