//! The clock: parts of steps between two standstills of the device, on every rank at once.

use crate::trainer::Trainer;
use enn_worker::{
    session::torchrun::Place,
    tch::{Cuda, Device},
};
use serde_json::{Value, json};
use std::{
    error::Error,
    time::{Duration, Instant},
};

/// Parts the measured steps are cut into; each is timed from one standstill of the device to the next.
const GROUPS: u64 = 6;
/// Longest wait for the other ranks.
const WAIT_MAX: Duration = Duration::from_secs(120);

/// What is timed, and how often.
pub(crate) struct Timing<'a> {
    warm_up: u64,
    per_group: u64,
    place: &'a Place,
}

impl<'a> Timing<'a> {
    /// `warm_up` steps, then `steps` that count.
    pub(crate) fn new(warm_up: u64, steps: u64, place: &'a Place) -> Self {
        Self { warm_up, per_group: (steps / GROUPS).max(1), place }
    }

    /// Times steps. Refuses when the last of them was not executed as it was to be.
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

    /// Times the all-reduces of a step with nothing beside them.
    pub(crate) fn all_reduces(&self, trainer: &Trainer) -> Result<Vec<f64>, Box<dyn Error>> {
        for _ in 0..self.warm_up {
            trainer.all_reduce(self.place)?;
        }
        self.groups(|| trainer.all_reduce(self.place))
    }

    /// Milliseconds of one call of `work`, from each part.
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
