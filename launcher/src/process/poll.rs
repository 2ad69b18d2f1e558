//! Waiting on several descriptors until one is ready or a deadline comes.

use nix::{
    errno::Errno,
    poll::{PollFd, PollTimeout, poll},
};
use std::{io, time::Instant};

/// Waits until a descriptor is ready or the deadline has passed; signals that are handled elsewhere do not end it.
pub(crate) fn wait_ready(fds: &mut [PollFd<'_>], deadline: Option<Instant>) -> io::Result<()> {
    loop {
        match poll(fds, timeout(deadline)) {
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Until the deadline, rounded up so that it has passed when poll returns.
fn timeout(deadline: Option<Instant>) -> PollTimeout {
    let Some(deadline) = deadline else { return PollTimeout::NONE };
    let milliseconds = deadline.saturating_duration_since(Instant::now()).as_micros().div_ceil(1000);
    PollTimeout::try_from(milliseconds).unwrap_or(PollTimeout::MAX)
}
