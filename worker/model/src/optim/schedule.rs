//! Learning rate over the exact number of optimizer steps: linear warm-up, then half a cosine.

use enn_common::config::train::TrainConfig;

/// Learning rate as a pure function of the step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// Largest learning rate, after warm-up.
    pub peak: f64,
    /// Rate of the last step.
    pub floor: f64,
    pub warmup_steps: u64,
    /// Number of steps of the run.
    pub total_steps: u64,
}

impl Schedule {
    /// Creates the schedule of `[train]` for a run of `total_steps` optimizer steps.
    pub fn new(config: &TrainConfig, total_steps: u64) -> Self {
        let warmup = (config.warmup_ratio.clamp(0.0, 1.0) * total_steps as f64).round() as u64;
        Self {
            peak: config.lr,
            floor: config.lr * config.lr_min_ratio.clamp(0.0, 1.0),
            warmup_steps: warmup.min(total_steps.saturating_sub(1)),
            total_steps,
        }
    }

    /// Returns the rate of optimizer step `step`, counted from 0. It is above 0 in the first warm-up step, and `floor`
    /// in the last step and beyond.
    pub fn rate(&self, step: u64) -> f64 {
        if step < self.warmup_steps {
            return self.peak * (step + 1) as f64 / self.warmup_steps as f64;
        }
        let span = self.total_steps.saturating_sub(self.warmup_steps + 1);
        if span == 0 {
            return self.peak;
        }
        let progress = ((step - self.warmup_steps) as f64 / span as f64).min(1.0);
        self.floor + (self.peak - self.floor) * 0.5 * (1.0 + (std::f64::consts::PI * progress).cos())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn schedule(total: u64, warmup_ratio: f64) -> Schedule {
        let config = TrainConfig { lr: 2e-3, lr_min_ratio: 0.1, warmup_ratio, ..TrainConfig::default() };
        Schedule::new(&config, total)
    }

    #[test]
    fn ends_meet_peak_and_floor() {
        let s = schedule(100, 0.1);
        assert_eq!(s.warmup_steps, 10);
        assert!((s.rate(0) - 2e-4).abs() < 1e-15);
        assert!((s.rate(9) - 2e-3).abs() < 1e-15);
        assert!((s.rate(10) - 2e-3).abs() < 1e-15);
        assert!((s.rate(99) - 2e-4).abs() < 1e-15);
        assert!((s.rate(10_000) - 2e-4).abs() < 1e-15);
        // Half-way down the cosine, at step 10 + 89/2, is the mean of peak and floor.
        assert!(((s.rate(54) + s.rate(55)) / 2.0 - 1.1e-3).abs() < 1e-6);
    }

    #[test]
    fn one_step_runs_at_the_peak() {
        assert_eq!(schedule(1, 0.5).rate(0), 2e-3);
        assert_eq!(schedule(0, 0.5).rate(0), 2e-3);
    }

    proptest! {
        #[test]
        fn rises_then_falls_and_stays_positive(total in 1_u64..500, ratio in 0.0_f64..1.0) {
            let s = schedule(total, ratio);
            for step in 0..total {
                let rate = s.rate(step);
                prop_assert!(rate > 0.0 && rate <= s.peak * (1.0 + 1e-12));
                if step + 1 < total && step >= s.warmup_steps {
                    prop_assert!(s.rate(step + 1) <= rate);
                }
                if step + 1 < s.warmup_steps {
                    prop_assert!(s.rate(step + 1) > rate);
                }
            }
        }
    }
}
