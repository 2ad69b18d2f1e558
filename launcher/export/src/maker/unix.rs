//! Settings of a process between fork and exec.

use nix::sys::{prctl, signal::Signal};
use std::{io, os::unix::process::CommandExt, process::Command};

/// Kills the process when the thread that starts it ends, in whatever way: a busy one does not notice that its input has ended.
/// Its own children are not killed.
pub(super) fn bind(command: &mut Command) {
    let bound = || prctl::set_pdeathsig(Signal::SIGKILL).map_err(io::Error::from);
    // SAFETY: a system call on the new process, which takes no memory and no lock.
    unsafe { command.pre_exec(bound) };
}
