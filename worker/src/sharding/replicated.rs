//! `ddp`: every rank keeps all of the state, and gradients are summed over all.

use super::{Nodes, Sharding, StateArrays, StateParts, arrays::WEIGHT_BYTES};
use crate::collective::RankError;
use enn_comm::ProcessGroup;
use enn_common::config::train::Strategy;
use enn_model::optim::Boxes;
use tch::TchError;

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

    fn shard(&self, arrays: &mut StateArrays, _group: &dyn ProcessGroup) -> Result<(), RankError> {
        arrays.allocate()
    }

    fn gather(&self, _arrays: &mut StateArrays, _group: &dyn ProcessGroup) -> Result<(), RankError> {
        Ok(())
    }

    fn state_parts(&self, _arrays: &StateArrays, _which: Boxes) -> Result<Option<StateParts>, TchError> {
        Ok(None)
    }
}
