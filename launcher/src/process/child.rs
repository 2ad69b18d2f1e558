//! A started process and its end.
//!
//! **Invariant:** signals go to the whole group, and only while the leader is not reaped, so that its number cannot belong
//! to somebody else.

use super::unix::{self, Binding, Guard};
use nix::sys::signal::Signal;
use std::{
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::process::ExitStatusExt,
    },
    process::Command,
};

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// With a code.
    Code(i32),
    /// By a signal.
    Signal(i32),
}

/// Why there is no process.
#[derive(Debug)]
pub(crate) enum StartError {
    /// The program cannot be started.
    Spawn(io::Error),
    /// The process cannot be watched; it was killed.
    Watch(io::Error),
}

/// A process that leads a group of its own. Dropping it kills the group.
#[derive(Debug)]
pub(crate) struct Process {
    child: std::process::Child,
    pidfd: OwnedFd,
    exit: Option<Exit>,
}

impl Process {
    /// Starts `command`, bound to this thread's life, and guards its group.
    pub(crate) fn start(command: Command, binding: Binding, guard: &mut Guard) -> Result<Self, StartError> {
        let process = Self::start_unguarded(command, binding)?;
        guard.add(process.pid());
        Ok(process)
    }

    /// Starts `command`, bound to this thread's life: what it starts itself may outlive a launcher that is killed.
    pub(crate) fn start_unguarded(mut command: Command, binding: Binding) -> Result<Self, StartError> {
        unix::bind_to_parent(&mut command, binding);
        let mut child = command.spawn().map_err(StartError::Spawn)?;
        match unix::pidfd(child.id()) {
            Ok(pidfd) => Ok(Self { child, pidfd, exit: None }),
            Err(error) => {
                unix::signal_group(child.id(), Signal::SIGKILL);
                let _reaped = child.wait();
                Err(StartError::Watch(error))
            }
        }
    }

    /// Its number.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Readable when the process has ended.
    pub(crate) fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// How it ended; `None` until it is reaped.
    pub(crate) fn exit(&self) -> Option<Exit> {
        self.exit
    }

    /// Signals the group, if the process has not been reaped.
    pub(crate) fn signal(&self, signal: Signal) {
        if self.exit.is_none() {
            unix::signal_group(self.pid(), signal);
        }
    }

    /// Reaps the process if it has ended, after killing what it left in its group. `None` when it lives or was reaped before.
    pub(crate) fn reap(&mut self, guard: &mut Guard) -> Option<Exit> {
        if self.exit.is_some() || !unix::has_ended(self.pid()) {
            return None;
        }
        unix::signal_group(self.pid(), Signal::SIGKILL);
        guard.remove(self.pid());
        let exit = match self.child.wait() {
            Ok(status) => status.signal().map(Exit::Signal).or(status.code().map(Exit::Code)).unwrap_or(Exit::Code(-1)),
            // Somebody else reaped it (a program with its own SIGCHLD handler): how it ended is lost.
            Err(_) => Exit::Code(-1),
        };
        self.exit = Some(exit);
        self.exit
    }
}

impl Drop for Process {
    /// A launcher that gives up early leaves nobody behind.
    fn drop(&mut self) {
        if self.exit.is_none() {
            unix::signal_group(self.pid(), Signal::SIGKILL);
            let _reaped = self.child.wait();
        }
    }
}
