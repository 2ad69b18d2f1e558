//! The time of the workers' last output.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// The time of the last output, shared between threads without a lock.
#[derive(Debug)]
pub(super) struct AtomicInstant {
    origin: Instant,
    /// Microseconds after `origin`, plus one; 0: never.
    after: AtomicU64,
}

impl AtomicInstant {
    pub(super) fn never(origin: Instant) -> Self {
        Self { origin, after: AtomicU64::new(0) }
    }

    pub(super) fn set(&self, now: Instant) {
        let micros = now.saturating_duration_since(self.origin).as_micros();
        self.after.store(u64::try_from(micros).unwrap_or(u64::MAX - 1) + 1, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> Option<Instant> {
        let micros = self.after.load(Ordering::Relaxed).checked_sub(1)?;
        self.origin.checked_add(Duration::from_micros(micros))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_moment_of_the_last_output() {
        let origin = Instant::now();
        let last = AtomicInstant::never(origin);
        assert_eq!(last.get(), None);
        last.set(origin + Duration::from_micros(5));
        assert_eq!(last.get(), Some(origin + Duration::from_micros(5)));
    }
}
