//! A collective of copy engines that was begun.

use super::mmap::TurnWords;
use crate::{CommError, wait_time::WaitTime};
use enn_core::backend::link::{CopyStream, LinkError, StreamEvent};
use nix::sys::prctl::{get_timerslack, set_timerslack};
use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// Shortest pause between checks of the device.
const SOON: Duration = Duration::from_micros(20);
const SELDOM: Duration = Duration::from_millis(1);
/// The pause between checks is this fraction of the time waited so far: the device may be idle until its end is noticed.
const SHARE: u32 = 512;
/// Tolerance by which a pause may exceed its length; a longer delay is not counted as waiting for others.
const LATE: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(super) struct LinkMember {
    pub(super) stream: CopyStream,
    pub(super) turns: Arc<TurnWords>,
    pub(super) waited: Arc<WaitTime>,
    pub(super) rank: u32,
    pub(super) size: u32,
}

/// A collective of copy engines that was begun; see [`crate::Work`].
#[derive(Debug)]
pub struct LinkWork {
    pub(super) operation: &'static str,
    pub(super) member: Arc<LinkMember>,
    /// Event after which this rank's operand is computed.
    pub(super) made: StreamEvent,
    pub(super) done: Arc<StreamEvent>,
}

/// Guard: reduces this thread's timer slack, as Linux adds 50 µs to each sleep by default.
struct ShortSleeps(Option<u64>);

impl ShortSleeps {
    fn begin() -> Self {
        let before = get_timerslack().ok().and_then(|slack| u64::try_from(slack).ok());
        let _it_sleeps_longer = set_timerslack(1);
        Self(before)
    }
}

impl Drop for ShortSleeps {
    fn drop(&mut self) {
        // 0 restores the process's default.
        let _it_sleeps_shorter = set_timerslack(self.0.unwrap_or(0));
    }
}

impl LinkWork {
    #[expect(clippy::disallowed_methods, reason = "a device tells no descriptor that could be waited for")]
    pub(crate) fn wait(&self, timeout: Duration) -> Result<(), CommError> {
        let LinkMember { waited, rank, size, .. } = &*self.member;
        let begun = Instant::now();
        let mut looked = begun;
        if !self.is_done()? {
            let _exact = ShortSleeps::begin();
            while !self.is_done()? {
                if looked - begun >= timeout {
                    let operation = self.operation;
                    let rank = *rank;
                    let size = *size;
                    return Err(CommError::TimedOut { operation, rank, size, timeout });
                }
                let pause = ((looked - begun) / SHARE).clamp(SOON, SELDOM);
                thread::sleep(pause);
                let now = Instant::now();
                if self.made.is_past().map_err(|error| self.error(&error))? {
                    waited.add((now - looked).min(pause + LATE));
                }
                looked = now;
            }
        }
        self.order()
    }

    pub(crate) fn order(&self) -> Result<(), CommError> {
        self.member.stream.hold(&self.done).map_err(|error| self.error(&error))
    }

    /// Returns whether the collective ended. Fails after any rank's abort, since waits were ended early.
    pub(crate) fn is_done(&self) -> Result<bool, CommError> {
        // The device is checked first: if an aborted wait contributed to a completed event, the announcement of that abort is visible by now.
        let past = self.done.is_past();
        self.member.check_intact(self.operation)?;
        past.map_err(|error| self.error(&error))
    }

    fn error(&self, error: &LinkError) -> CommError {
        self.member.error(self.operation, error)
    }
}

impl LinkMember {
    /// Fails after any rank's abort.
    pub(super) fn check_intact(&self, operation: &'static str) -> Result<(), CommError> {
        let Self { turns, rank, size, .. } = self;
        let rank = *rank;
        let size = *size;
        match turns.aborted_by() {
            // Checked after the word, so that this rank's own abort is never reported as a peer's.
            _ if turns.is_aborted() => Err(CommError::Aborted { operation, rank, size }),
            Some(peer) => Err(CommError::PeerLost { operation, rank, size, peer, what: "ended the group" }),
            None => Ok(()),
        }
    }

    pub(super) fn error(&self, operation: &'static str, error: &LinkError) -> CommError {
        CommError::Collective { operation, rank: self.rank, size: self.size, message: error.to_string() }
    }
}
