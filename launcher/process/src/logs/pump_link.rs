//! What the pump and its thread exchange: commands to the thread, and the state that both share.

use super::{error::LogError, last_output::AtomicInstant, stream::Stream};
use crossbeam_channel::{Sender, bounded};
use nix::sys::eventfd::EventFd;
use std::{
    sync::{Arc, Mutex, atomic::AtomicU64},
    time::Duration,
};

#[derive(Debug)]
pub(super) enum PumpCommand {
    Add(Box<Stream>),
    /// Show a line of the launcher itself, given without its end.
    Say(String),
    /// Answer when the current content of the pipes has been read.
    CatchUp(Sender<()>),
    /// Answer when all output so far was written.
    Settle(Sender<()>),
    /// Give the workers' terminals the size of the consoles' windows.
    Resize,
    /// Write out all output, and end.
    End,
    /// Discard the output that consoles do not accept.
    GiveUp,
}

/// Sends commands to the pump's thread.
#[derive(Debug)]
pub(super) struct PumpHandle {
    pub(super) commands: Sender<PumpCommand>,
    pub(super) wake: Arc<EventFd>,
}

impl PumpHandle {
    /// Waits until the current content of the pipes has been read, at most for `limit`: a console that accepts nothing
    /// delays reading.
    pub(super) fn catch_up(&self, limit: Duration) {
        let (done, read) = bounded(1);
        if self.send(PumpCommand::CatchUp(done)).is_ok() {
            let _late = read.recv_timeout(limit);
        }
    }

    pub(super) fn send(&self, command: PumpCommand) -> Result<(), LogError> {
        self.commands.send(command).map_err(|_gone| LogError::Gone)?;
        // A counter that is full wakes as well.
        let _full = self.wake.write(1);
        Ok(())
    }
}

/// The state shared by the pump's thread and its owner.
#[derive(Debug)]
pub(super) struct PumpShared {
    /// The time of the last output of any worker.
    pub(super) last: AtomicInstant,
    /// Errors that were not taken yet.
    pub(super) errors: Mutex<Vec<LogError>>,
    /// Output that the consoles' readers have not taken while the pump ends.
    pub(super) backlog: Mutex<Option<Backlog>>,
    /// Bytes that were discarded because a console was given up.
    pub(super) lost: AtomicU64,
}

/// Output that a console's reader has not taken yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backlog {
    /// "standard output", "standard error" or both.
    pub console: &'static str,
    pub bytes: u64,
}
