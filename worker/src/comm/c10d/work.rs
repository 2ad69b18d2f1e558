//! A collective in c10d's hands.

use super::result::{Fault, RawWork};
use crate::comm::CommError;
use std::time::Duration;

/// See [`crate::comm::Work`].
#[derive(Debug)]
pub struct C10dWork {
    raw: RawWork,
    at: Place,
}

/// Which collective, and where: what its errors say.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) operation: &'static str,
    pub(super) rank: u32,
    pub(super) size: u32,
}

impl Place {
    pub(super) fn fault(self, fault: Fault, timeout: Duration) -> CommError {
        let Self { operation, rank, size } = self;
        if fault.timed_out {
            CommError::TimedOut { operation, rank, size, timeout }
        } else {
            CommError::Collective { operation, rank, size, message: fault.message }
        }
    }
}

impl C10dWork {
    pub(super) fn new(raw: RawWork, at: Place) -> Self {
        Self { raw, at }
    }

    pub(in crate::comm) fn wait(&self, timeout: Duration) -> Result<(), CommError> {
        self.raw.wait(timeout).map_err(|fault| self.at.fault(fault, timeout))
    }

    pub(in crate::comm) fn order(&self, timeout: Duration) -> Result<(), CommError> {
        self.raw.order(timeout).map_err(|fault| self.at.fault(fault, timeout))
    }

    pub(in crate::comm) fn is_done(&self) -> Result<bool, CommError> {
        self.raw.is_done().map_err(|fault| self.at.fault(fault, Duration::ZERO))
    }
}
