//! Time for reports, and for when to save. **Invariant:** what training computes does not depend on it.

use std::time::{Duration, Instant};

#[derive(Debug)]
pub(crate) struct Stopwatch {
    last: Instant,
}

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self { last: Instant::now() }
    }

    pub(crate) fn lap_ms(&mut self) -> f64 {
        let now = Instant::now();
        let lap = now.duration_since(self.last);
        self.last = now;
        lap.as_secs_f64() * 1e3
    }
}

/// Says when something was left undone for too long.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Alarm {
    every: Option<Duration>,
    since: Instant,
}

impl Alarm {
    /// Rings when so many seconds have passed; 0: never.
    pub(crate) fn new(every_s: f64) -> Self {
        let every = Duration::try_from_secs_f64(every_s).ok().filter(|every| !every.is_zero());
        Self { every, since: Instant::now() }
    }

    pub(crate) fn rings(&self) -> bool {
        self.every.is_some_and(|every| self.since.elapsed() >= every)
    }

    pub(crate) fn reset(&mut self) {
        self.since = Instant::now();
    }
}

/// Says when the next report is due, so that reports cost nothing when steps are fast.
#[derive(Debug)]
pub(crate) struct Throttle {
    every: Duration,
    last: Option<Instant>,
}

impl Throttle {
    /// At most one report in `every`. The first is due at once.
    pub(crate) fn new(every: Duration) -> Self {
        Self { every, last: None }
    }

    /// Whether one is due now; then the next wait begins.
    pub(crate) fn due(&mut self) -> bool {
        let now = Instant::now();
        let due = self.last.is_none_or(|last| now.duration_since(last) >= self.every);
        if due {
            self.last = Some(now);
        }
        due
    }
}
