//! Aborting a group from any thread: before it is formed, while it forms, and while its owner waits in it.

use super::{CommError, c10d::result::RawAbort};
use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::{Duration, Instant},
};

/// Aborts a group from any thread.
pub trait AbortHandle: fmt::Debug + Send + Sync {
    /// Ends the group at once: every collective begun here, and every later one, soon fails with
    /// [`CommError::Aborted`], and ranks that wait for this one get an error, too. Returns at once for shared memory, within
    /// 10 ms per peer for Gloo, and within a few hundred milliseconds for NCCL.
    ///
    /// May be called any number of times, and when the group is gone.
    fn abort(&self);
}

/// Limits of forming a group: a deadline, and a signal that aborts the forming and later the group.
///
/// The signal stays tied to the group that is formed with it: an abort while the group forms ends the forming, and a later one
/// ends the group. At most one group is formed with it.
#[derive(Debug)]
pub struct Forming {
    deadline: Instant,
    pub(super) line: Arc<AbortSignal>,
}

impl Forming {
    /// Returns limits with a deadline `timeout` from now.
    #[must_use]
    pub fn within(timeout: Duration) -> Self {
        let now = Instant::now();
        // A deadline beyond the clock's range is replaced by a distant one.
        let deadline = now.checked_add(timeout).unwrap_or(now + Duration::from_secs(u64::from(u32::MAX)));
        Self { deadline, line: Arc::default() }
    }

    /// Returns a handle that aborts the forming, and afterwards the group.
    #[must_use]
    pub fn abort_handle(&self) -> Box<dyn AbortHandle> {
        self.line.abort_handle()
    }

    /// Returns limits for another group that is aborted together with this one.
    #[must_use]
    pub fn beside(&self, timeout: Duration) -> Self {
        let other = Self::within(timeout);
        self.line.bind(&other.line);
        other
    }

    pub(super) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Returns the error of a failed forming: [`CommError::Aborted`] if it was aborted.
    pub(super) fn failed(&self, rank: u32, size: u32, backend: &'static str, message: String) -> CommError {
        if self.line.is_aborted() {
            CommError::Aborted { operation: "form", rank, size }
        } else {
            CommError::Form { backend, rank, size, message }
        }
    }
}

/// Abort state that a group and its handles share.
#[derive(Debug, Default)]
pub(super) struct AbortSignal {
    pub(super) raw: RawAbort,
    /// Handles of the group's own parts, besides c10d's.
    tied: Mutex<Vec<Weak<dyn AbortHandle>>>,
    /// Signals of the groups that are aborted with this one.
    others: Mutex<Vec<Arc<Self>>>,
}

impl AbortSignal {
    pub(super) fn is_aborted(&self) -> bool {
        self.raw.is_aborted()
    }

    pub(super) fn abort_handle(self: &Arc<Self>) -> Box<dyn AbortHandle> {
        Box::new(Arc::clone(self))
    }

    /// Makes an abort end the waits of `tied`. If the group is aborted already, they end now.
    pub(super) fn tie<C: AbortHandle + 'static>(&self, tied: &Arc<C>) {
        let weak: Weak<C> = Arc::downgrade(tied);
        self.tied.lock().unwrap_or_else(PoisonError::into_inner).push(weak);
        if self.is_aborted() {
            tied.abort();
        }
    }

    /// Makes an abort end `other`, too. If this group is aborted already, the other one ends now.
    fn bind(&self, other: &Arc<Self>) {
        self.others.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(other));
        if self.is_aborted() {
            other.abort_all();
        }
    }

    /// Aborts everything tied to this signal and to those that are aborted with it.
    fn abort_tied(&self) {
        let tied = self.tied.lock().unwrap_or_else(PoisonError::into_inner).clone();
        tied.iter().filter_map(Weak::upgrade).for_each(|tied| tied.abort());
        let others = self.others.lock().unwrap_or_else(PoisonError::into_inner).clone();
        others.iter().for_each(|other| other.abort_tied());
    }

    fn abort_all(&self) {
        // NCCL's abort waits for the device, which may wait for a tied handle, so these are aborted first. They are aborted once more afterwards,
        // for handles that were tied in between.
        self.abort_tied();
        self.raw.abort();
        self.abort_tied();
        let others = self.others.lock().unwrap_or_else(PoisonError::into_inner).clone();
        others.iter().for_each(|other| other.abort_all());
    }
}

impl AbortHandle for Arc<AbortSignal> {
    fn abort(&self) {
        self.abort_all();
    }
}

/// Handle of a group of one rank, in which nothing waits.
#[derive(Debug)]
pub(super) struct NoopHandle;

impl AbortHandle for NoopHandle {
    fn abort(&self) {}
}
