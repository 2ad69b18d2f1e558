//! A collective that was issued to the engine.

use super::fault::{CollectiveContext, Fault};
use crate::{CommError, wait_time::WaitTime};
use std::{
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::Duration,
};

/// Result of a collective, once it ended.
#[derive(Debug, Default)]
pub(super) struct WorkOutcome {
    ended: Mutex<Option<Result<(), Fault>>>,
    changed: Condvar,
}

impl WorkOutcome {
    /// Sets the result; only the first one counts.
    pub(super) fn tell(&self, result: Result<(), Fault>) {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(result);
        self.changed.notify_all();
    }

    fn get(&self) -> Option<Result<(), Fault>> {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self, timeout: Duration) -> Option<Result<(), Fault>> {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let (ended, _) = self
            .changed
            .wait_timeout_while(ended, timeout, |ended| ended.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        *ended
    }
}

/// A collective that was issued; see [`crate::Work`].
#[derive(Debug)]
pub struct ShmWork {
    pub(super) outcome: Arc<WorkOutcome>,
    pub(super) at: CollectiveContext,
    pub(super) waited: Arc<WaitTime>,
}

impl ShmWork {
    pub(crate) fn wait(&self, timeout: Duration) -> Result<(), CommError> {
        match self.waited.during(|| self.outcome.wait(timeout)) {
            Some(result) => result.map_err(|fault| self.at.error(fault)),
            None => Err(self.at.timed_out(timeout)),
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.outcome.get().is_some()
    }
}
