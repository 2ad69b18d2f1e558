//! Signals and limits for processes that are not our children: by descriptor, so that a number that was given to another
//! process meanwhile is never hit.

use nix::sys::signal::Signal;
use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
    ptr,
};

pub(super) fn signal(pidfd: &OwnedFd, signal: Signal) -> io::Result<()> {
    let none = ptr::null::<libc::siginfo_t>();
    // SAFETY: the descriptor is open; without a siginfo the kernel fills in its own.
    match unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal as libc::c_int, none, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sets the maximum size of a file that process `pid` writes, bytes, and returns the previous one. The hard limit
/// stays, so that this can be undone.
pub(super) fn limit_files(pid: u32, bytes: u64) -> io::Result<u64> {
    let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is ours and of the type the kernel writes.
    if unsafe { libc::prlimit(pid.cast_signed(), libc::RLIMIT_FSIZE, ptr::null(), &raw mut before) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let after = libc::rlimit { rlim_cur: bytes.min(before.rlim_max), rlim_max: before.rlim_max };
    // SAFETY: the structure is ours and lives through the call; no old limit is asked for.
    match unsafe { libc::prlimit(pid.cast_signed(), libc::RLIMIT_FSIZE, &raw const after, ptr::null_mut()) } {
        0 => Ok(before.rlim_cur),
        _ => Err(io::Error::last_os_error()),
    }
}
