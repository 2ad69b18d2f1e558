//! Time for reports. **Invariant:** no decision of training looks at it.

use std::time::{Duration, Instant};

/// Laps.
#[derive(Debug)]
pub(super) struct Stopwatch {
    last: Instant,
}

impl Stopwatch {
    /// Begins the first lap.
    pub(super) fn start() -> Self {
        Self { last: Instant::now() }
    }

    /// Milliseconds of the lap that ends now.
    pub(super) fn lap_ms(&mut self) -> f64 {
        let now = Instant::now();
        let lap = now.duration_since(self.last);
        self.last = now;
        lap.as_secs_f64() * 1e3
    }
}

/// Says when the next report is due, so that reports cost nothing when steps are fast.
#[derive(Debug)]
pub(super) struct Throttle {
    every: Duration,
    last: Option<Instant>,
}

impl Throttle {
    /// At most one report in `every`. The first is due at once.
    pub(super) fn new(every: Duration) -> Self {
        Self { every, last: None }
    }

    /// Whether one is due now; then the next wait begins.
    pub(super) fn due(&mut self) -> bool {
        let now = Instant::now();
        let due = self.last.is_none_or(|last| now.duration_since(last) >= self.every);
        if due {
            self.last = Some(now);
        }
        due
    }
}
