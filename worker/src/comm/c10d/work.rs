//! A collective in c10d's hands.

use super::result::{Fault, RawWork};
use crate::comm::{CommError, cut::Line, waited::Waited};
use std::{sync::Arc, time::Duration};

/// See [`crate::comm::Work`].
#[derive(Debug)]
pub struct C10dWork {
    raw: RawWork,
    operation: &'static str,
    member: Arc<Member>,
}

/// What a group's collectives share.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) rank: u32,
    pub(super) size: u32,
    pub(super) line: Arc<Line>,
    pub(super) waited: Waited,
}

impl Member {
    /// What libtorch said of `operation`. Whatever it says after a cut is the cut's doing.
    pub(super) fn error(&self, operation: &'static str, fault: Fault, timeout: Duration) -> CommError {
        let Self { rank, size, .. } = *self;
        if self.line.is_cut() {
            CommError::Aborted { operation, rank, size }
        } else if fault.timed_out {
            CommError::TimedOut { operation, rank, size, timeout }
        } else {
            CommError::Collective { operation, rank, size, message: fault.message }
        }
    }

    /// Fails after a cut.
    pub(super) fn intact(&self) -> Result<(), CommError> {
        let Self { rank, size, .. } = *self;
        if self.line.is_cut() { Err(CommError::Aborted { operation: "all_reduce", rank, size }) } else { Ok(()) }
    }
}

impl C10dWork {
    pub(super) fn new(raw: RawWork, operation: &'static str, member: &Arc<Member>) -> Self {
        Self { raw, operation, member: Arc::clone(member) }
    }

    fn error(&self, fault: Fault, timeout: Duration) -> CommError {
        self.member.error(self.operation, fault, timeout)
    }

    pub(in crate::comm) fn wait(&self, timeout: Duration) -> Result<(), CommError> {
        let (ended, waited) = self.raw.wait(timeout);
        self.member.waited.add(waited);
        ended.map_err(|fault| self.error(fault, timeout))
    }

    pub(in crate::comm) fn order(&self, timeout: Duration) -> Result<(), CommError> {
        self.member.waited.during(|| self.raw.order(timeout)).map_err(|fault| self.error(fault, timeout))
    }

    pub(in crate::comm) fn is_done(&self) -> Result<bool, CommError> {
        self.raw.is_done().map_err(|fault| self.error(fault, Duration::ZERO))
    }
}
