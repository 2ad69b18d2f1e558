//! The mean of the weights over the last quarter of the steps (stochastic weight averaging), each parameter once.
//!
//! **Invariant:** before the last quarter the average costs only its memory; whether it has begun depends on the step
//! alone.

use super::{
    Ema, FlatParams, OptimError,
    error::failed,
    flat::{Boxes, Shard},
};
use std::collections::BTreeMap;
use tch::Tensor as Raw;

/// Share of all steps after which averaging begins.
const BEGINS_AT: f64 = 0.75;
pub const PREFIX: &str = "tail.";
/// Name of the number of averaged steps; parameters have a dot in their names, so there is no conflict.
const UPDATES: &str = "tail.updates";

/// The average, and the step at which it begins.
#[derive(Debug)]
pub struct Tail {
    mean: Ema,
    first_step: u64,
    begun: bool,
}

impl Tail {
    /// Creates the average for a training of `steps_total` steps.
    pub fn new(weights: &FlatParams, steps_total: u64) -> Result<Self, OptimError> {
        let first_step = (BEGINS_AT * steps_total as f64).round() as u64;
        Ok(Self { mean: Ema::new(weights, 1.0)?, first_step, begun: false })
    }

    /// Advances to step number `step` (from 0). Returns true at the first averaged step, when recorded programs become
    /// invalid.
    pub fn advance(&mut self, step: u64) -> bool {
        let before = std::mem::replace(&mut self.begun, step >= self.first_step);
        before != self.begun
    }

    /// Returns the average after it has begun.
    pub fn begun(&self) -> Option<&Ema> {
        self.begun.then_some(&self.mean)
    }

    /// Exchanges weights and average after it has begun. Two calls change nothing.
    pub fn swap(&mut self, weights: &FlatParams) -> Result<(), OptimError> {
        if self.begun { self.mean.swap(weights) } else { Ok(()) }
    }

    /// Returns the part of the average that this rank keeps, also before averaging has begun.
    pub fn kept(&self) -> &[Raw] {
        self.mean.kept()
    }

    /// Replaces the arrays by those of the same average that the weights keep now.
    pub fn keep(&mut self, mean: Vec<Raw>) {
        self.mean.keep(mean);
    }

    /// Returns the boxes of a sharded average; boxes to save only after averaging has begun.
    pub fn shards(&self, weights: &FlatParams, which: Boxes) -> Vec<Shard> {
        let there = self.begun || which == Boxes::Kept;
        if there { self.mean.shards(weights, which) } else { Vec::new() }
    }

    /// Returns the number of updates with its name, after averaging has begun.
    pub fn count(&self) -> Option<(String, Raw)> {
        self.begun().map(|mean| (UPDATES.to_owned(), mean.updates().shallow_clone()))
    }

    /// Returns the average by parameter and the number of its updates, after averaging has begun.
    pub fn named(&self, weights: &FlatParams) -> Vec<(String, Raw)> {
        let Some(mean) = self.begun() else { return Vec::new() };
        let views = weights.views(mean.kept()).into_iter().map(|(name, raw)| (format!("{PREFIX}{name}"), raw));
        views.chain(self.count()).collect()
    }

    /// Restores a saved average; without one, averaging has not begun.
    ///
    /// # Errors
    /// When a part of it is missing or has another shape.
    pub fn restore(&mut self, weights: &FlatParams, saved: &BTreeMap<String, Raw>) -> Result<(), OptimError> {
        let Some(updates) = saved.get(UPDATES) else {
            self.begun = false;
            return Ok(());
        };
        let updates = updates.f_double_value(&[]).map_err(failed("restore the average"))?;
        let own = saved.iter().filter_map(|(name, raw)| Some((name.strip_prefix(PREFIX)?, raw)));
        let own = own.map(|(name, raw)| (format!("ema.{name}"), raw.shallow_clone())).collect();
        self.mean.restore(weights, &own, updates as u64)?;
        self.begun = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use enn_core::{
        autograd::Cx,
        params::{Group, Init, ParamBuilder},
    };
    use tch::Device;

    #[test]
    fn the_last_quarter_is_averaged_and_goes_on_where_it_was_saved() {
        let mut pb = ParamBuilder::new();
        pb.param("part.a", &[3], Init::Zeros, Group::Decay);
        let params = pb.build(1, Device::Cpu).unwrap();
        let flat = FlatParams::of(&params);
        let value = |tail: &Tail, flat: &FlatParams| tail.named(flat)[0].1.double_value(&[0]);
        let mut tail = Tail::new(&flat, 8).unwrap();
        for step in 0..8u64 {
            assert_eq!(tail.advance(step), step == 6);
            let _ = tch::no_grad(|| flat.own().unwrap()[0].f_add_scalar_(1.0)).unwrap();
            let saved: BTreeMap<String, Raw> =
                tail.named(&flat).into_iter().map(|(name, raw)| (name, raw.copy())).collect();
            assert_eq!(saved.len(), if step >= 6 { 2 } else { 0 });
            let mut again = Tail::new(&flat, 8).unwrap();
            again.restore(&flat, &saved).unwrap();
            assert!(!again.advance(step));
            tail = again;
            if let Some(mean) = tail.begun() {
                let cx = Cx::train(&params, 0, 0);
                mean.update(&cx, &flat, &cx.input(Raw::from(1.0f64))).unwrap();
            }
        }
        assert_eq!(value(&tail, &flat), 7.5);
        tail.swap(&flat).unwrap();
        assert_eq!((flat.slabs()[0].double_value(&[0]), value(&tail, &flat)), (7.5, 8.0));
    }
}
