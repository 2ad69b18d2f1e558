//! What a process gets between fork and exec.

use nix::sys::{prctl, signal::Signal};
use std::{io, os::unix::process::CommandExt, process::Command};

/// Kills the process when the thread that starts it ends, in whatever way: one that computes does not hear that its input has ended.
/// What it starts itself is not killed.
pub(super) fn bind(command: &mut Command) {
    let bound = || prctl::set_pdeathsig(Signal::SIGKILL).map_err(io::Error::from);
    // SAFETY: a system call on the new process, which takes no memory and no lock.
    unsafe { command.pre_exec(bound) };
}
