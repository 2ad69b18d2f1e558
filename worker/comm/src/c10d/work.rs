//! A collective of c10d.

use super::result::{RawWork, ShimFault};
use crate::{CommError, abort::AbortSignal, wait_time::WaitTime};
use std::{sync::Arc, time::Duration};

/// A collective of c10d that was begun; see [`crate::Work`].
#[derive(Debug)]
pub struct C10dWork {
    raw: RawWork,
    operation: &'static str,
    member: Arc<C10dMember>,
}

#[derive(Debug)]
pub(super) struct C10dMember {
    pub(super) rank: u32,
    pub(super) size: u32,
    pub(super) line: Arc<AbortSignal>,
    pub(super) waited: WaitTime,
}

impl C10dMember {
    /// Converts an error of libtorch in `operation`. After an abort every error counts as the abort's.
    pub(super) fn error(&self, operation: &'static str, fault: ShimFault, timeout: Duration) -> CommError {
        let Self { rank, size, .. } = *self;
        if self.line.is_aborted() {
            CommError::Aborted { operation, rank, size }
        } else if fault.timed_out {
            CommError::TimedOut { operation, rank, size, timeout }
        } else {
            CommError::Collective { operation, rank, size, message: fault.message }
        }
    }

    pub(super) fn intact(&self) -> Result<(), CommError> {
        let Self { rank, size, .. } = *self;
        if self.line.is_aborted() { Err(CommError::Aborted { operation: "all_reduce", rank, size }) } else { Ok(()) }
    }
}

impl C10dWork {
    pub(super) fn new(raw: RawWork, operation: &'static str, member: &Arc<C10dMember>) -> Self {
        Self { raw, operation, member: Arc::clone(member) }
    }

    fn error(&self, fault: ShimFault, timeout: Duration) -> CommError {
        self.member.error(self.operation, fault, timeout)
    }

    pub(crate) fn wait(&self, timeout: Duration) -> Result<(), CommError> {
        let (ended, waited) = self.raw.wait(timeout);
        self.member.waited.add(waited);
        ended.map_err(|fault| self.error(fault, timeout))
    }

    pub(crate) fn order(&self, timeout: Duration) -> Result<(), CommError> {
        self.member.waited.during(|| self.raw.order(timeout)).map_err(|fault| self.error(fault, timeout))
    }

    pub(crate) fn is_done(&self) -> Result<bool, CommError> {
        self.raw.is_done().map_err(|fault| self.error(fault, Duration::ZERO))
    }
}
