//! Signals and the immediate end of the process.

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::{SigHandler, Signal, signal},
};
use std::{
    io,
    os::{
        fd::{AsFd, FromRawFd, OwnedFd, RawFd},
        unix::process::parent_id,
    },
    time::Duration,
};

/// Longest time that is left to this process after its parent's end: to see the end of its input, and to clear up.
const ORPHANED_MAX: Duration = Duration::from_secs(10);

/// Leaves interrupts to the launcher: a signal sent to the whole job must not end a worker in the middle of a step; the
/// launcher says through the control page when to stop, and kills with a signal that cannot be ignored. And a file that grows
/// beyond what is allowed is an error of the writer, not the end of the process.
pub(crate) fn ignore_signals() -> nix::Result<()> {
    for which in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGXFSZ] {
        // SAFETY: ignoring a signal installs no handler, so that no code of ours runs in signal context.
        unsafe { signal(which, SigHandler::SigIgn) }?;
    }
    Ok(())
}

/// Ends the process now, from any thread, without destructors: libtorch's would wait for a collective that never ends.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: `_exit` is async-signal-safe and has no precondition.
    unsafe { nix::libc::_exit(code) }
}

/// From now on this process does not outlive its parent by more than a moment, also when it computes something that never ends.
pub(crate) fn end_after_parent() -> io::Result<()> {
    // SAFETY: pidfd_open takes two integers and returns a new descriptor or -1.
    let fd = unsafe { nix::libc::syscall(nix::libc::SYS_pidfd_open, parent_id(), 0) };
    let fd = RawFd::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the kernel has just made this descriptor for us.
    let parent = unsafe { OwnedFd::from_raw_fd(fd) };
    std::thread::Builder::new().name("enn-parent".to_owned()).spawn(move || {
        while poll(&mut [PollFd::new(parent.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE).is_err() {}
        std::thread::park_timeout(ORPHANED_MAX);
        exit_now(1)
    })?;
    Ok(())
}
