//! Flat arrays of which a rank keeps a shard, and which of them have memory at a point of a step.

use crate::backend::duplicate;
use crate::backend::torch::safe::renew_storage;
use crate::op::value::{BucketId, Val};
use std::collections::{HashMap, VecDeque};
use tch::{TchError, Tensor as Raw};

/// A flat array of which this rank keeps a shard. The whole array has memory only while it is unsharded.
#[derive(Debug)]
pub struct ShardedBuffer {
    /// The whole array, whose storage may be empty.
    pub(super) whole: Raw,
    /// The range that is divided into equal parts, one per rank, if there is one.
    pub(super) divided: Option<Raw>,
    /// The range that every rank holds, if there is one.
    pub(super) common: Option<Raw>,
    /// Shards of this rank, each with its place in the array and its values.
    pub(super) shards: Vec<(Raw, Raw)>,
}

impl ShardedBuffer {
    /// Shards `whole`, which must own its storage, and frees its memory. `divided` is the range that the ranks hold in equal parts and
    /// `common` the one that all of them hold. Both, and `places`, are views of `whole`; the values at the places are kept.
    pub fn new(whole: &Raw, divided: Option<Raw>, common: Option<Raw>, places: Vec<Raw>) -> Result<Self, TchError> {
        let keep = |place: Raw| duplicate(&place).map(|values| (place, values));
        let shards = places.into_iter().map(keep).collect::<Result<_, _>>()?;
        let buffer = Self { whole: whole.shallow_clone(), divided, common, shards };
        buffer.set_allocated(false)?;
        Ok(buffer)
    }

    /// Values of this rank's shards.
    pub fn shards(&self) -> impl Iterator<Item = &Raw> {
        self.shards.iter().map(|(_, values)| values)
    }

    /// Allocates uninitialised memory for the whole array, or frees it.
    pub fn set_allocated(&self, allocated: bool) -> Result<(), TchError> {
        renew_storage(&self.whole, allocated).map_err(|error| TchError::Torch(error.to_string()))
    }

    /// Allocates the whole array outside a step and fills it with this rank's shards and zeros elsewhere.
    pub fn fill(&self) -> Result<(), TchError> {
        self.set_allocated(true)?;
        tch::no_grad(|| {
            let _ = self.whole.shallow_clone().f_zero_()?;
            self.shards.iter().try_for_each(|(place, values)| place.shallow_clone().f_copy_(values))
        })
    }
}

/// The arrays that have memory at this point of a step.
#[derive(Default)]
pub(super) struct ResidentBuffers {
    /// Parameter array of each value that lies in one.
    pub(super) owners: HashMap<Val, usize>,
    /// Unsharded parameter arrays, the most recently used one last.
    pub(super) unsharded: VecDeque<usize>,
    /// The unsharded array whose gather may still be in flight.
    pub(super) prefetched: Option<usize>,
    /// Whether each bucket's gradient array has memory.
    pub(super) gradients: Vec<bool>,
    /// The gradient array whose sums were begun.
    pub(super) reducing: Option<BucketId>,
}

impl ResidentBuffers {
    pub(super) fn note(&mut self, val: Val, array: usize) {
        self.owners.insert(val, array);
    }
}
