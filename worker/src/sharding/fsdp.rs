//! `fsdp`: every rank keeps a share of everything. Whole weights and gradients have memory only while a step uses them
//! (`enn_core::autograd::fsdp`), and a step changes the share at one place, after its last collective: what a broken round leaves is the
//! share of a whole step.

use super::{Nodes, Sharding, StateArrays, StateParts, arrays::WEIGHT_BYTES};
use crate::collective::RankError;
use enn_comm::ProcessGroup;
use enn_common::config::train::Strategy;
use enn_core::autograd::{BucketId, Cx};
use enn_core::error::{HookError, OpError};
use enn_core::params::GradBuckets;
use enn_model::optim::Boxes;
use tch::{TchError, Tensor};

#[derive(Debug)]
pub(super) struct Fsdp;

impl Sharding for Fsdp {
    fn strategy(&self) -> Strategy {
        Strategy::Fsdp
    }

    fn bytes(&self, weights: f64, nodes: &Nodes) -> Option<f64> {
        Some(weights * WEIGHT_BYTES / f64::from(nodes.ranks()))
    }

    fn keeps_weights(&self) -> bool {
        false
    }

    fn shard(&self, arrays: &mut StateArrays, group: &dyn ProcessGroup) -> Result<(), RankError> {
        arrays.divide(group, |arrays, share| {
            // Gradients of the round before may lie where all its ranks write.
            arrays.grads = GradBuckets::none();
            arrays.params.shard(share)?;
            arrays.grads = GradBuckets::sharded(&arrays.params, share)?;
            let masters = arrays.params.kept(false).into_iter().map(Tensor::shallow_clone).collect();
            arrays.weights.keep_masters(masters);
            Ok(())
        })
    }

    fn gather(&self, arrays: &mut StateArrays, group: &dyn ProcessGroup) -> Result<(), RankError> {
        arrays.gather(group, |arrays| {
            self.unshard(arrays, group)?;
            arrays.is_one_share = false;
            arrays.params.unshard();
            arrays.grads = GradBuckets::none();
            Ok(())
        })
    }

    fn unshard(&self, arrays: &mut StateArrays, group: &dyn ProcessGroup) -> Result<(), RankError> {
        arrays.params.fill()?;
        arrays.gather_weights(group)?;
        Ok(arrays.params.refresh_shadows()?)
    }

    fn reshard(&self, arrays: &mut StateArrays) -> Result<(), RankError> {
        arrays.params.empty()?;
        Ok(arrays.grads.empty()?)
    }

    fn publish(&self, arrays: &StateArrays, _group: &dyn ProcessGroup) -> Result<(), RankError> {
        // Weights are gathered when they are read.
        Ok(arrays.params.refresh_shadows()?)
    }

    fn common_weights(&self, arrays: &StateArrays) -> Result<Vec<Tensor>, TchError> {
        arrays.weights.common()
    }

    fn zero_grads(&self, cx: &Cx<'_>, arrays: &StateArrays) -> Result<(), OpError> {
        cx.zero(arrays.grads.kept().into_iter().flatten())
    }

    fn reduce_grads(
        &self,
        cx: &Cx<'_>,
        arrays: &StateArrays,
        bucket: BucketId,
        _gradient: &Tensor,
        last: bool,
    ) -> Result<(), HookError> {
        Ok(cx.reduce_gradients(&arrays.grads, bucket, last)?)
    }

    fn state_parts(&self, arrays: &StateArrays, which: Boxes) -> Result<Option<StateParts>, TchError> {
        arrays.parts(which, self.keeps_weights()).map(Some)
    }

    fn recover(&self, arrays: &mut StateArrays) -> bool {
        if arrays.is_one_share {
            arrays.weights.assign_copy(0, 1);
        }
        arrays.is_one_share
    }
}
