//! Detects dead ranks: one thread waits on the process descriptors of the other ranks and notes each that ends.

use super::{ring::Ring, sys};
use crate::CommError;
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::eventfd::{EfdFlags, EventFd},
};
use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    thread,
};

/// Watches the other ranks' processes until it is dropped.
#[derive(Debug)]
pub(super) struct Watch {
    end: Arc<EventFd>,
}

impl Watch {
    /// Begins watching the processes `pids` (by rank; the own one is left out).
    pub(super) fn begin(ring: &Arc<Ring>, pids: &[u32]) -> Result<Self, CommError> {
        let rank = ring.rank;
        let size = ring.size;
        let failed = |message: String| CommError::Form { backend: "shm", rank, size, message };
        let mut alive: Vec<(u32, OwnedFd)> = Vec::new();
        for peer in ring.peers() {
            let pid = pids[peer as usize];
            let fd = sys::pidfd(pid).map_err(|errno| failed(format!("rank {peer}, process {pid}: {errno}")))?;
            alive.push((peer, fd));
        }
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let end = EventFd::from_flags(flags).map_err(|errno| failed(format!("eventfd: {errno}")))?;
        let end = Arc::new(end);
        let ring = Arc::clone(ring);
        let stop = Arc::clone(&end);
        thread::Builder::new()
            .name("enn-comm-watch".to_owned())
            .spawn(move || watch(&ring, &stop, alive))
            .map_err(|error| failed(format!("a thread that watches the ranks: {error}")))?;
        Ok(Self { end })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // The write may fail if the counter is full, but then it is readable, too.
        let _ = self.end.write(1);
    }
}

fn watch(ring: &Ring, end: &EventFd, mut alive: Vec<(u32, OwnedFd)>) {
    loop {
        let mut fds = vec![PollFd::new(end.as_fd(), PollFlags::POLLIN)];
        fds.extend(alive.iter().map(|(_, fd)| PollFd::new(fd.as_fd(), PollFlags::POLLIN)));
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) => {}
            Err(Errno::EINTR | Errno::EAGAIN | Errno::ENOMEM) => continue,
            Err(error) => return tracing::error!(%error, "dead ranks are noticed only at the time limit"),
        }
        let readable: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(true)).collect();
        if readable[0] {
            return;
        }
        let mut ended = readable[1..].iter();
        alive.retain(|(peer, _)| {
            let ended = ended.next().is_some_and(|ended| *ended);
            if ended {
                ring.note_gone(*peer);
            }
            !ended
        });
    }
}
