//! A collective on its way.

use super::mmap::Turns;
use crate::backend::link::{Beside, LinkError, Moment};
use crate::comm::{CommError, waited::Waited};
use nix::sys::prctl::{get_timerslack, set_timerslack};
use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// Pauses between looks at the device.
const SOON: Duration = Duration::from_micros(20);
const SELDOM: Duration = Duration::from_millis(1);
/// A look is a pause after so large a part of the time waited: the device has nothing to do until the end is seen.
const SHARE: u32 = 512;
/// A pause may be so much longer than it was to be; what is beyond is this process's own doing.
const LATE: Duration = Duration::from_millis(2);

/// What a group's collectives share.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) beside: Beside,
    pub(super) turns: Arc<Turns>,
    pub(super) waited: Arc<Waited>,
    pub(super) rank: u32,
    pub(super) size: u32,
}

/// See [`crate::comm::Work`].
#[derive(Debug)]
pub struct LinkWork {
    pub(super) operation: &'static str,
    pub(super) member: Arc<Member>,
    /// When this rank had computed what is summed.
    pub(super) made: Moment,
    pub(super) done: Arc<Moment>,
}

/// Lets this thread sleep for as short as it says, where Linux adds 50 µs.
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
        // 0 is the process's own.
        let _it_sleeps_shorter = set_timerslack(self.0.unwrap_or(0));
    }
}

impl LinkWork {
    #[expect(clippy::disallowed_methods, reason = "a device tells no descriptor that could be waited for")]
    pub(in crate::comm) fn wait(&self, timeout: Duration) -> Result<(), CommError> {
        let Member { waited, rank, size, .. } = &*self.member;
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

    pub(in crate::comm) fn order(&self) -> Result<(), CommError> {
        self.member.beside.hold(&self.done).map_err(|error| self.error(&error))
    }

    /// Fails after any rank's cut, whatever the device has come to: waits were ended.
    pub(in crate::comm) fn is_done(&self) -> Result<bool, CommError> {
        // The device first: if a wait that was ended had a part in what is past, the word of that cut is there by now.
        let past = self.done.is_past();
        self.member.uncut(self.operation)?;
        past.map_err(|error| self.error(&error))
    }

    fn error(&self, error: &LinkError) -> CommError {
        self.member.error(self.operation, error)
    }
}

impl Member {
    /// Fails after any rank's cut.
    pub(super) fn uncut(&self, operation: &'static str) -> Result<(), CommError> {
        let Self { turns, rank, size, .. } = self;
        let rank = *rank;
        let size = *size;
        match turns.cut_by() {
            // Looked at after the word, so that this rank's own is never told as a peer's.
            _ if turns.is_cut() => Err(CommError::Aborted { operation, rank, size }),
            Some(peer) => Err(CommError::PeerLost { operation, rank, size, peer, what: "ended the group" }),
            None => Ok(()),
        }
    }

    pub(super) fn error(&self, operation: &'static str, error: &LinkError) -> CommError {
        CommError::Collective { operation, rank: self.rank, size: self.size, message: error.to_string() }
    }
}
