//! A collective in the engine's hands.

use super::fault::{Fault, Place};
use crate::comm::{CommError, waited::Waited};
use std::{
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::Duration,
};

/// How a collective ended, once it did.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    ended: Mutex<Option<Result<(), Fault>>>,
    told: Condvar,
}

impl Outcome {
    /// The first outcome stays.
    pub(super) fn tell(&self, result: Result<(), Fault>) {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(result);
        self.told.notify_all();
    }

    fn get(&self) -> Option<Result<(), Fault>> {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self, timeout: Duration) -> Option<Result<(), Fault>> {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let (ended, _) = self
            .told
            .wait_timeout_while(ended, timeout, |ended| ended.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        *ended
    }
}

/// See [`crate::comm::Work`].
#[derive(Debug)]
pub struct ShmWork {
    pub(super) outcome: Arc<Outcome>,
    pub(super) at: Place,
    pub(super) waited: Arc<Waited>,
}

impl ShmWork {
    pub(in crate::comm) fn wait(&self, timeout: Duration) -> Result<(), CommError> {
        match self.waited.during(|| self.outcome.wait(timeout)) {
            Some(result) => result.map_err(|fault| self.at.error(fault)),
            None => Err(self.at.timed_out(timeout)),
        }
    }

    pub(in crate::comm) fn is_done(&self) -> bool {
        self.outcome.get().is_some()
    }
}
