//! Timing of steps in groups, with the device idle before and after each, on every rank at once.

use crate::trainer::Trainer;
use enn_worker::{
    session::torchrun::Member,
    tch::{Cuda, Device},
};
use serde_json::{Value, json};
use std::{
    error::Error,
    time::{Duration, Instant},
};

/// Groups into which the measured steps are divided.
const GROUPS: u64 = 6;
/// Longest wait for the other ranks.
const WAIT_MAX: Duration = Duration::from_secs(120);

/// Plan of the measurement.
pub(crate) struct Timing<'a> {
    warm_up: u64,
    per_group: u64,
    place: &'a Member,
}

impl<'a> Timing<'a> {
    /// Plans `warm_up` steps, then `steps` measured ones.
    pub(crate) fn new(warm_up: u64, steps: u64, place: &'a Member) -> Self {
        Self { warm_up, per_group: (steps / GROUPS).max(1), place }
    }

    /// Times steps. Fails when the last of them was not executed in the requested mode.
    pub(crate) fn steps(&self, trainer: &mut Trainer) -> Result<Value, Box<dyn Error>> {
        let mut number = 0;
        for _ in 0..self.warm_up {
            trainer.step(self.place, number)?;
            number += 1;
        }
        let groups = self.groups(|| {
            number += 1;
            Ok(trainer.step(self.place, number - 1)?)
        })?;
        trainer.expect_mode()?;
        let mut result = trainer.found()?;
        result["ms"] = json!(median(&groups));
        result["groups"] = json!(groups);
        result["steps"] = json!(self.per_group * GROUPS);
        Ok(result)
    }

    /// Times the all-reduces of a step alone.
    pub(crate) fn all_reduces(&self, trainer: &Trainer) -> Result<Vec<f64>, Box<dyn Error>> {
        for _ in 0..self.warm_up {
            trainer.all_reduce(self.place)?;
        }
        self.groups(|| trainer.all_reduce(self.place))
    }

    /// Returns the milliseconds of one call of `work` in each group.
    fn groups(&self, mut work: impl FnMut() -> Result<(), Box<dyn Error>>) -> Result<Vec<f64>, Box<dyn Error>> {
        let mut ms = Vec::new();
        for _ in 0..GROUPS {
            self.stand_still()?;
            let start = Instant::now();
            for _ in 0..self.per_group {
                work()?;
            }
            stand_still(self.place.device);
            ms.push(start.elapsed().as_secs_f64() * 1e3 / self.per_group as f64);
        }
        Ok(ms)
    }

    /// Waits for the device and for the other ranks.
    fn stand_still(&self) -> Result<(), Box<dyn Error>> {
        stand_still(self.place.device);
        if self.place.world() > 1 {
            self.place.group.barrier(WAIT_MAX)?;
            stand_still(self.place.device);
        }
        Ok(())
    }
}

fn stand_still(device: Device) {
    if let Device::Cuda(index) = device {
        Cuda::synchronize(index as i64);
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    f64::midpoint(sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2])
}
