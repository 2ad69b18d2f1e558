//! `ddp`: every rank keeps all of the state, and gradients are summed over all.

use super::{Nodes, Sharding, arrays::WEIGHT_BYTES};
use enn_common::config::train::Strategy;

#[derive(Debug)]
pub(super) struct Replicated;

impl Sharding for Replicated {
    fn strategy(&self) -> Strategy {
        Strategy::Ddp
    }

    fn bytes(&self, weights: f64, _nodes: &Nodes) -> Option<f64> {
        Some(weights * WEIGHT_BYTES)
    }

    fn values_min(&self, averages: u64) -> u64 {
        // The weight, its gradient, two moments and the best weight.
        5 + averages
    }
}
