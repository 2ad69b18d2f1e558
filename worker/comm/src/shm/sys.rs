//! System calls for waiting: futexes between processes, and process descriptors that signal a process's end.

use nix::{
    errno::Errno,
    libc::{self, SYS_futex, SYS_pidfd_open},
};
use std::{
    os::fd::{FromRawFd, OwnedFd},
    ptr,
    sync::atomic::AtomicU32,
    time::Duration,
};

/// Sleeps while `word` holds `value`: until woken, or at most `timeout`. May return early; the caller looks again.
pub(super) fn futex_wait(word: &AtomicU32, value: u32, timeout: Duration) {
    let limit = libc::timespec {
        tv_sec: timeout.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // SAFETY: the word and the limit outlive the call, which writes neither; every outcome, errors included, is a wake-up.
    let _woken_or_not = unsafe {
        libc::syscall(SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, &raw const limit, ptr::null::<u32>(), 0)
    };
}

/// Wakes all sleepers on `word`, in any process.
pub(super) fn futex_wake(word: &AtomicU32) {
    // SAFETY: waking reads only the word's address.
    let _woken = unsafe {
        libc::syscall(
            SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAKE,
            i32::MAX,
            ptr::null::<libc::timespec>(),
            ptr::null::<u32>(),
            0,
        )
    };
}

/// Returns a descriptor that becomes readable when process `pid` ends.
pub(super) fn pidfd(pid: u32) -> Result<OwnedFd, Errno> {
    // SAFETY: the call takes two numbers and returns a descriptor or an error.
    let fd = unsafe { libc::syscall(SYS_pidfd_open, pid, 0) };
    let fd = Errno::result(fd)?;
    let fd = i32::try_from(fd).map_err(|_| Errno::EBADF)?;
    // SAFETY: the kernel just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
