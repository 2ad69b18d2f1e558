//! Exponential moving average of the weights, free of bias from the first update on.
//!
//! avg ← avg + w_t (p − avg) with w_t = (1 − d)/(1 − dᵗ) is the usual average from zero divided by 1 − dᵗ, without ever
//! holding the biased value: what is stored can be used as weights at any time. Each parameter is stored once.

use super::{FlatParams, OptimError, error::failed};
use std::collections::BTreeMap;
use tch::Tensor as Raw;

/// Averages in the layout of [`FlatParams`].
#[derive(Debug)]
pub struct Ema {
    averages: Vec<Raw>,
    decay: f64,
    updates: u64,
}

impl Ema {
    /// An average with decay d, 0 < d < 1, beginning at the current weights.
    ///
    /// # Errors
    /// When there is no memory for a second copy of the weights.
    pub fn new(weights: &FlatParams, decay: f64) -> Result<Self, OptimError> {
        let copies = weights.slabs().iter().map(Raw::f_copy).collect::<Result<_, _>>();
        Ok(Self { averages: copies.map_err(failed("allocate the average"))?, decay, updates: 0 })
    }

    /// Updates so far.
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// Takes in the weights after an optimizer step.
    ///
    /// # Errors
    /// When the weights are not those given to `new`.
    pub fn update(&mut self, weights: &FlatParams) -> Result<(), OptimError> {
        self.updates += 1;
        let weight = (1.0 - self.decay) / (1.0 - self.decay.powf(self.updates as f64));
        let mut go = || {
            for (average, slab) in self.averages.iter_mut().zip(weights.slabs()) {
                let _ = average.f_lerp_(slab, weight)?;
            }
            Ok(())
        };
        tch::no_grad(&mut go).map_err(failed("average the weights"))
    }

    /// Exchanges weights and average: once to validate with the average, and again to go on training. Exact.
    ///
    /// # Errors
    /// When the weights are not those given to `new`.
    pub fn swap(&mut self, weights: &mut FlatParams) -> Result<(), OptimError> {
        let mut go = || {
            for (average, slab) in self.averages.iter_mut().zip(weights.slabs_mut()) {
                let kept = slab.f_copy()?;
                slab.f_copy_(average)?;
                average.f_copy_(&kept)?;
            }
            Ok(())
        };
        tch::no_grad(&mut go).map_err(failed("exchange weights and average"))
    }

    /// The average by parameter, `ema.<fqn>`, as views in the parameters' shapes.
    pub fn named(&self, weights: &FlatParams) -> Vec<(String, Raw)> {
        weights.views(&self.averages).into_iter().map(|(name, raw)| (format!("ema.{name}"), raw)).collect()
    }

    /// Puts a saved average in place: all of `ema.<fqn>`, and the number of updates.
    ///
    /// # Errors
    /// When an entry is missing or has another shape; nothing is changed then.
    pub fn restore(
        &mut self,
        weights: &FlatParams,
        saved: &BTreeMap<String, Raw>,
        updates: u64,
    ) -> Result<(), OptimError> {
        super::flat::copy_in(self.named(weights), saved)?;
        self.updates = updates;
        Ok(())
    }
}
