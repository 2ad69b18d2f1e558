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
use enn_core::autograd::{BucketId, Cx};
use enn_core::error::{HookError, OpError};
use enn_model::optim::Boxes;
use std::fmt;
use tch::{TchError, Tensor};

/// A strategy. Without methods of its own it keeps all arrays on every rank.
pub trait Sharding: fmt::Debug + Sync {
    fn strategy(&self) -> Strategy;

    /// Whether it runs on the nodes of this round. One collective at most, in `nodes`.
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
    fn form_groups(&self, _group: &dyn ProcessGroup, _local: u32) -> Result<(), RankError> {
        Ok(())
    }

    /// The strategy that divides arrays between the ranks that share the state, if it is another one.
    fn among_sharing(&self) -> Option<&'static dyn Sharding> {
        None
    }

    /// Whether every rank has all weights and gradients at all times.
    fn keeps_weights(&self) -> bool {
        true
    }

    /// Keeps this rank's share of whole arrays, and allocates what they lack.
    fn shard(&self, arrays: &mut StateArrays, _group: &dyn ProcessGroup) -> Result<(), RankError> {
        arrays.allocate()
    }

    /// Makes all arrays whole on every rank, from the shares of all.
    fn gather(&self, _arrays: &mut StateArrays, _group: &dyn ProcessGroup) -> Result<(), RankError> {
        Ok(())
    }

    /// Allocates all weights, and gathers them from all ranks, for what is computed outside of a step. Every rank calls it.
    fn unshard(&self, _arrays: &mut StateArrays, _group: &dyn ProcessGroup) -> Result<(), RankError> {
        Ok(())
    }

    /// Frees what [`Sharding::unshard`] allocated, and gradients that a step left allocated when it failed.
    fn reshard(&self, _arrays: &mut StateArrays) -> Result<(), RankError> {
        Ok(())
    }

    /// Brings to every rank what each wrote into its share of the weights outside of a step.
    fn publish(&self, arrays: &StateArrays, group: &dyn ProcessGroup) -> Result<(), RankError> {
        arrays.gather_weights(group)
    }

    /// The weights that must be equal on all ranks.
    fn common_weights(&self, arrays: &StateArrays) -> Result<Vec<Tensor>, TchError> {
        Ok(arrays.weights.slabs().iter().map(Tensor::shallow_clone).collect())
    }

    /// Sets the gradients of a step to zero.
    fn zero_grads(&self, cx: &Cx<'_>, _arrays: &StateArrays) -> Result<(), OpError> {
        cx.clear_gradients();
        Ok(())
    }

    /// Begins to sum a complete bucket of gradients over the ranks; `last` marks the last micro-batch of the step.
    fn reduce_grads(
        &self,
        cx: &Cx<'_>,
        arrays: &StateArrays,
        _bucket: BucketId,
        gradient: &Tensor,
        last: bool,
    ) -> Result<(), HookError> {
        if last {
            let (divided, common) = arrays.weights.share().split(gradient)?;
            divided.iter().try_for_each(|part| cx.reduce_scatter(part))?;
            common.iter().try_for_each(|part| cx.all_reduce(part))?;
        }
        Ok(())
    }

    /// Lists the arrays as a checkpoint has them; `None` where every rank has all of them.
    fn state_parts(&self, _arrays: &StateArrays, _which: Boxes) -> Result<Option<StateParts>, TchError> {
        Ok(None)
    }

    /// After a round that broke: makes this rank answer for all of its share, as if no other had the same. False where a step may have
    /// changed a part of the share.
    fn recover(&self, _arrays: &mut StateArrays) -> bool {
        false
    }
}

/// Where a strategy that was asked for runs.
#[derive(Debug)]
pub enum Placement {
    /// The strategy runs on these nodes; a sentence for the user.
    Runs(String),
    /// Another one runs in its place; the reason.
    Instead(&'static dyn Sharding, String),
}
