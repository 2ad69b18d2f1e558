//! How the ranks of a round divide the state of training: one file for each strategy, and one trait that all others ask.
//!
//! Imports `collective`. A new strategy is a file here with its row in `choice`, and its word in the configuration.

mod arrays;
mod choice;
mod fsdp;
mod hsdp;
mod nodes;
mod replicated;
mod zero1;

pub use arrays::{StateArrays, StateParts, StateSettings};
pub use choice::{ChosenSharding, REPLICATED, choose, configured};
pub use nodes::Nodes;

use crate::collective::RankError;
use enn_comm::ProcessGroup;
use enn_common::config::train::Strategy;
use enn_core::{
    autograd::{BucketId, Cx},
    error::{HookError, OpError},
    params::GradBuckets,
};
use enn_model::optim::{Boxes, FlatParams};
use std::fmt;
use tch::{TchError, Tensor};

/// A strategy. Its methods describe one where every rank has all weights and gradients, unless a strategy says otherwise.
pub trait Sharding: fmt::Debug + Sync {
    /// Its word in the configuration.
    fn strategy(&self) -> Strategy;

    /// Whether it runs on the nodes of this round. One collective at most, in `nodes`.
    ///
    /// # Errors
    /// The collective's.
    fn placement(&self, _nodes: &dyn Fn() -> Result<Nodes, RankError>) -> Result<Placement, RankError> {
        Ok(Placement::Runs("as asked".to_owned()))
    }

    /// Bytes that a rank keeps of the state of so many weights; `None` where it does not run on these nodes.
    fn bytes(&self, weights: f64, nodes: &Nodes) -> Option<f64>;

    /// Continues the sentence on why `auto` chose it.
    fn advantage(&self, _nodes: &Nodes) -> String {
        String::new()
    }

    /// Least number of f32 values that a process keeps of every weight, where there are so many averages.
    fn values_min(&self, _averages: u64) -> u64 {
        // The weight and its gradient.
        2
    }

    /// Forms the groups of ranks that it needs within `group`; `local` ranks are on this node.
    ///
    /// # Errors
    /// The group's.
    fn form_groups(&self, _group: &dyn ProcessGroup, _local: u32) -> Result<(), RankError> {
        Ok(())
    }

    /// Whether every rank has all weights and gradients at all times.
    fn keeps_weights(&self) -> bool {
        true
    }

    /// Keeps this rank's share of whole arrays, and allocates what they lack.
    ///
    /// # Errors
    /// When there is no memory for the share.
    fn shard(&self, arrays: &mut StateArrays, group: &dyn ProcessGroup) -> Result<(), RankError>;

    /// Makes all arrays whole on every rank, from the shares of all.
    ///
    /// # Errors
    /// The collective's, and when there is no memory. The arrays are of no use then.
    fn gather(&self, arrays: &mut StateArrays, group: &dyn ProcessGroup) -> Result<(), RankError>;

    /// Allocates all weights, and gathers them from all ranks, for what is computed outside of a step. Every rank calls it.
    ///
    /// # Errors
    /// The collective's, and when there is no memory.
    fn unshard(&self, _arrays: &mut StateArrays, _group: &dyn ProcessGroup) -> Result<(), RankError> {
        Ok(())
    }

    /// Frees what [`Sharding::unshard`] allocated, and gradients that a step left allocated when it failed.
    ///
    /// # Errors
    /// What libtorch says.
    fn reshard(&self, _arrays: &mut StateArrays) -> Result<(), RankError> {
        Ok(())
    }

    /// Brings to every rank what each wrote into its share of the weights outside of a step.
    ///
    /// # Errors
    /// The collective's.
    fn publish(&self, arrays: &StateArrays, group: &dyn ProcessGroup) -> Result<(), RankError> {
        arrays.gather_weights(group)
    }

    /// The weights that must be equal on all ranks.
    ///
    /// # Errors
    /// What libtorch says.
    fn common_weights(&self, arrays: &StateArrays) -> Result<Vec<Tensor>, TchError> {
        Ok(arrays.weights.slabs().iter().map(Tensor::shallow_clone).collect())
    }

    /// Sets the gradients of a step to zero.
    ///
    /// # Errors
    /// A kernel's.
    fn zero_grads(&self, cx: &Cx<'_>, _grads: &GradBuckets) -> Result<(), OpError> {
        cx.clear_gradients();
        Ok(())
    }

    /// Begins to sum a complete bucket of gradients over the ranks; `last` marks the last micro-batch of the step.
    ///
    /// # Errors
    /// The collective's.
    fn reduce_grads(
        &self,
        cx: &Cx<'_>,
        weights: &FlatParams,
        _grads: &GradBuckets,
        _bucket: BucketId,
        gradient: &Tensor,
        last: bool,
    ) -> Result<(), HookError> {
        if last {
            let (divided, common) = weights.share().split(gradient)?;
            divided.iter().try_for_each(|part| cx.reduce_scatter(part))?;
            common.iter().try_for_each(|part| cx.all_reduce(part))?;
        }
        Ok(())
    }

    /// What a checkpoint holds of the arrays; `None` where every rank has all of them.
    ///
    /// # Errors
    /// What libtorch says.
    fn state_parts(&self, arrays: &StateArrays, which: Boxes) -> Result<Option<StateParts>, TchError>;

    /// After a round that broke: makes this rank answer for all of its share, as if no other had the same. False where a step may have
    /// changed a part of the share.
    fn recover(&self, _arrays: &mut StateArrays) -> bool {
        false
    }
}

/// Where a strategy that was asked for runs.
#[derive(Debug)]
pub enum Placement {
    /// It runs on these nodes; a sentence for the user.
    Runs(String),
    /// Another one runs in its place; the reason.
    Instead(&'static dyn Sharding, String),
}
