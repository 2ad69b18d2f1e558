//! Measures how long this rank waits for the others: a rank that never waits is the one that the others wait for.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// Nanoseconds that the owner's thread has spent waiting for collectives.
#[derive(Debug, Default)]
pub(super) struct WaitTime(AtomicU64);

impl WaitTime {
    /// Runs `wait` and adds the time it took.
    pub(super) fn during<T>(&self, wait: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let result = wait();
        self.add(begun.elapsed());
        result
    }

    pub(super) fn add(&self, waited: Duration) {
        let nanos = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        self.0.fetch_add(nanos, Ordering::Relaxed);
    }

    pub(super) fn total(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}
