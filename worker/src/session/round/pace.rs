//! How fast training goes: times of the epoch and since the last report; for people only.

use crate::session::clock::{Stopwatch, Throttle};
use enn_common::event::StepTimes;
use std::time::Duration;

const STEP_REPORT_EVERY: Duration = Duration::from_millis(100);

/// Times since the epoch and the last report began.
pub(crate) struct Pace {
    pub(crate) watch: Stopwatch,
    pub(crate) throttle: Throttle,
    epoch: StepTimes,
    epoch_steps: u64,
    samples: u64,
    ms: f64,
    reported_samples: u64,
    reported_ms: f64,
}

impl Pace {
    pub(crate) fn new() -> Self {
        Self {
            watch: Stopwatch::start(),
            throttle: Throttle::new(STEP_REPORT_EVERY),
            epoch: StepTimes::default(),
            epoch_steps: 0,
            samples: 0,
            ms: 0.0,
            reported_samples: 0,
            reported_ms: 0.0,
        }
    }

    /// The next step is reported, however soon after the last report.
    pub(crate) fn report_next(&mut self) {
        self.throttle = Throttle::new(STEP_REPORT_EVERY);
    }

    pub(crate) fn begin_epoch(&mut self) {
        self.epoch = StepTimes::default();
        self.epoch_steps = 0;
    }

    pub(crate) fn note(&mut self, step: &StepTimes, total_ms: f64, samples: u64) {
        self.epoch.total += total_ms;
        self.epoch.data += step.data;
        self.epoch.forward += step.forward;
        self.epoch.backward += step.backward;
        self.epoch.comm += step.comm;
        self.epoch.optimizer += step.optimizer;
        self.epoch_steps += 1;
        self.samples += samples;
        self.ms += total_ms;
    }

    pub(crate) fn epoch_mean(&self) -> StepTimes {
        let n = self.epoch_steps.max(1) as f64;
        StepTimes {
            total: self.epoch.total / n,
            data: self.epoch.data / n,
            forward: self.epoch.forward / n,
            backward: self.epoch.backward / n,
            comm: self.epoch.comm / n,
            optimizer: self.epoch.optimizer / n,
        }
    }

    /// Samples per second of training time; NaN before the first step.
    pub(crate) fn rate(&self) -> f64 {
        self.samples as f64 / self.ms * 1e3
    }

    pub(crate) fn rate_since_report(&mut self) -> f64 {
        let rate = (self.samples - self.reported_samples) as f64 / (self.ms - self.reported_ms) * 1e3;
        self.reported_samples = self.samples;
        self.reported_ms = self.ms;
        rate
    }
}
