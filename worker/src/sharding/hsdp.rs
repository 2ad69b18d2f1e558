//! `hsdp`: [`Fsdp`] among the ranks of each node, and every node has all of the state.

use super::{
    Nodes, Placement, Sharding, StateArrays, StateParts, arrays::WEIGHT_BYTES, fsdp::Fsdp, replicated::Replicated,
};
use crate::collective::RankError;
use enn_comm::ProcessGroup;
use enn_common::config::train::Strategy;
use enn_core::{
    autograd::{BucketId, Cx},
    error::{HookError, OpError},
    params::GradBuckets,
};
use enn_model::optim::{Boxes, FlatParams};
use tch::{TchError, Tensor};

#[derive(Debug)]
pub(super) struct Hsdp;

impl Sharding for Hsdp {
    fn strategy(&self) -> Strategy {
        Strategy::Hsdp
    }

    fn placement(&self, nodes: &dyn Fn() -> Result<Nodes, RankError>) -> Result<Placement, RankError> {
        let replicated = |why: &str| Placement::Instead(&Replicated, why.to_owned());
        let fsdp = |why: String| Placement::Instead(&Fsdp, why);
        Ok(match nodes()? {
            Nodes::Even { nodes: 1, each: 1 } => replicated("there is one worker"),
            Nodes::Even { nodes: 1, .. } => {
                fsdp("all workers are on one node, and no other has what they share".to_owned())
            }
            Nodes::Even { each: 1, .. } => replicated("every node has one worker, and nobody to share with"),
            Nodes::Even { nodes, each } => Placement::Runs(format!("as asked, over {nodes} nodes of {each} workers")),
            Nodes::Uneven(nodes) => {
                let nodes: Vec<String> = nodes.iter().map(u32::to_string).collect();
                fsdp(format!("the nodes have {} workers, and it needs the same number on each", nodes.join(", ")))
            }
        })
    }

    fn bytes(&self, weights: f64, nodes: &Nodes) -> Option<f64> {
        match nodes {
            Nodes::Even { nodes: 2.., each } => Some(weights * WEIGHT_BYTES / f64::from(*each)),
            _ => None,
        }
    }

    fn advantage(&self, nodes: &Nodes) -> String {
        match nodes {
            Nodes::Even { each, .. } => format!("; divided by the {each} workers of a node it fits"),
            Nodes::Uneven(_) => String::new(),
        }
    }

    fn form_groups(&self, group: &dyn ProcessGroup, local: u32) -> Result<(), RankError> {
        Ok(group.by_node(local)?)
    }

    fn shard(&self, arrays: &mut StateArrays, group: &dyn ProcessGroup) -> Result<(), RankError> {
        Fsdp.shard(arrays, group)?;
        if let Some(mesh) = group.mesh() {
            arrays.weights.assign_copy(mesh.across.rank(), mesh.across.size());
        }
        Ok(())
    }

    fn keeps_weights(&self) -> bool {
        Fsdp.keeps_weights()
    }

    fn gather(&self, arrays: &mut StateArrays, group: &dyn ProcessGroup) -> Result<(), RankError> {
        Fsdp.gather(arrays, group)
    }

    fn unshard(&self, arrays: &mut StateArrays, group: &dyn ProcessGroup) -> Result<(), RankError> {
        Fsdp.unshard(arrays, group)
    }

    fn reshard(&self, arrays: &mut StateArrays) -> Result<(), RankError> {
        Fsdp.reshard(arrays)
    }

    fn publish(&self, arrays: &StateArrays, group: &dyn ProcessGroup) -> Result<(), RankError> {
        Fsdp.publish(arrays, group)
    }

    fn common_weights(&self, arrays: &StateArrays) -> Result<Vec<Tensor>, TchError> {
        Fsdp.common_weights(arrays)
    }

    fn zero_grads(&self, cx: &Cx<'_>, grads: &GradBuckets) -> Result<(), OpError> {
        Fsdp.zero_grads(cx, grads)
    }

    fn reduce_grads(
        &self,
        cx: &Cx<'_>,
        weights: &FlatParams,
        grads: &GradBuckets,
        bucket: BucketId,
        gradient: &Tensor,
        last: bool,
    ) -> Result<(), HookError> {
        Fsdp.reduce_grads(cx, weights, grads, bucket, gradient, last)
    }

    fn state_parts(&self, arrays: &StateArrays, which: Boxes) -> Result<Option<StateParts>, TchError> {
        Fsdp.state_parts(arrays, which)
    }

    fn recover(&self, arrays: &mut StateArrays) -> bool {
        Fsdp.recover(arrays)
    }
}
