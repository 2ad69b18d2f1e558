//! `zero1`: every rank keeps all weights and gradients, and a share of moments, averages and best weights. It updates its share of the
//! weights, which the ranks then exchange: a round that breaks meanwhile leaves no whole share.

use super::arrays::{GRADIENT_BYTES, WEIGHT_BYTES};
use super::{Nodes, Sharding, StateArrays, StateParts};
use crate::collective::RankError;
use enn_comm::ProcessGroup;
use enn_common::config::train::Strategy;
use enn_model::optim::Boxes;
use tch::TchError;

#[derive(Debug)]
pub(super) struct Zero1;

impl Sharding for Zero1 {
    fn strategy(&self) -> Strategy {
        Strategy::Zero1
    }

    fn bytes(&self, weights: f64, nodes: &Nodes) -> Option<f64> {
        Some(weights * (GRADIENT_BYTES + (WEIGHT_BYTES - GRADIENT_BYTES) / f64::from(nodes.ranks())))
    }

    fn shard(&self, arrays: &mut StateArrays, group: &dyn ProcessGroup) -> Result<(), RankError> {
        arrays.divide(group, |arrays, _| arrays.allocate_grads())
    }

    fn gather(&self, arrays: &mut StateArrays, group: &dyn ProcessGroup) -> Result<(), RankError> {
        arrays.gather(group, |_| Ok(()))
    }

    fn state_parts(&self, arrays: &StateArrays, which: Boxes) -> Result<Option<StateParts>, TchError> {
        arrays.parts(which, self.keeps_weights()).map(Some)
    }
}
