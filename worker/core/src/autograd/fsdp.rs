//! Fully sharded parameters and gradients (FSDP): flat arrays that have memory only while a step uses them.
//!
//! Each rank keeps its shard of every flat array. An operation that reads a parameter unshards its array first: memory is allocated,
//! this rank's shard copied in, and the other shards gathered. All of it is recorded. The neighbour that will be read next is prefetched.
//! A few arrays stay resident; the least recently used one is resharded first. A gradient array is allocated for its first gradient,
//! summed over the ranks when its last gradient is there, added to this rank's shard, and released. Where other ranks keep the same
//! shard (HSDP), the last micro-batch's sums are summed over them, too, while the backward pass goes on.
//!
//! **Invariant:** which arrays are resident at which record depends on the program only, so that all ranks run the same collectives. No
//! array is resident at the end of a step.

use super::cx::Cx;
use super::leaf::GradLeaves;
use super::memory::is_view;
use super::program::{Phase, Rec};
use crate::backend::duplicate;
use crate::backend::torch::safe::renew_storage;
use crate::error::OpError;
use crate::op::Op;
use crate::op::value::{BucketId, Tensor, Val};
use smallvec::SmallVec;
use std::collections::{HashMap, VecDeque};
use tch::{TchError, Tensor as Raw};

/// Most parameter arrays that are resident at a time: the one being read, the one before it, and the next.
const RESIDENT_MAX: usize = 3;

/// A flat array of which this rank keeps a shard. The whole array has memory only while it is unsharded.
#[derive(Debug)]
pub struct ShardedBuffer {
    /// The whole array, whose storage may be empty.
    whole: Raw,
    /// The range that is divided into equal parts, one per rank, if there is one.
    divided: Option<Raw>,
    /// The range that every rank holds, if there is one.
    common: Option<Raw>,
    /// Shards of this rank, each with its place in the array and its values.
    shards: Vec<(Raw, Raw)>,
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
    owners: HashMap<Val, usize>,
    /// Unsharded parameter arrays, the most recently used one last.
    unsharded: VecDeque<usize>,
    /// The unsharded array whose gather may still be in flight.
    prefetched: Option<usize>,
    /// Whether each bucket's gradient array has memory.
    gradients: Vec<bool>,
    /// The gradient array whose sums were begun.
    reducing: Option<BucketId>,
}

impl ResidentBuffers {
    pub(super) fn note(&mut self, val: Val, array: usize) {
        self.owners.insert(val, array);
    }
}

impl Cx<'_> {
    /// Unshards the arrays that an operation reads, and prefetches the next one.
    pub(super) fn unshard_operands(&self, ins: &[&Tensor]) -> Result<(), OpError> {
        if self.leaves.sharded_buffers().is_empty() {
            return Ok(());
        }
        let mut needed: SmallVec<[usize; 4]> = SmallVec::new();
        for tensor in ins {
            let owner = self.resident.borrow().owners.get(&tensor.val()).copied();
            needed.extend(owner.filter(|array| !needed.contains(array)));
        }
        for &array in &needed {
            let (unsharded, prefetched) = {
                let resident = self.resident.borrow();
                (resident.unsharded.contains(&array), resident.prefetched == Some(array))
            };
            if !unsharded {
                self.unshard(array, &needed)?;
            }
            if !unsharded || prefetched {
                self.resident.borrow_mut().prefetched = None;
                self.run_collective(Op::Order, &[])?;
                self.prefetch_next_to(array, &needed)?;
            }
            let unsharded = &mut self.resident.borrow_mut().unsharded;
            unsharded.retain(|other| *other != array);
            unsharded.push_back(array);
        }
        Ok(())
    }

    /// Notes that views of a value in an array lie in that array, too.
    pub(super) fn follow(&self, rec: &Rec) {
        if self.leaves.sharded_buffers().is_empty() || !is_view(&rec.op) {
            return;
        }
        let mut resident = self.resident.borrow_mut();
        if let Some(array) = rec.ins.first().and_then(|val| resident.owners.get(val).copied()) {
            rec.outs().for_each(|val| resident.note(val, array));
        }
    }

    /// Begins to unshard the array that will be read after `array`.
    fn prefetch_next_to(&self, array: usize, needed: &[usize]) -> Result<(), OpError> {
        let next = match self.phase.get() {
            Phase::Forward => array.checked_sub(1),
            _ => Some(array + 1),
        };
        let buffers = self.leaves.sharded_buffers();
        // All master arrays come first, followed by as many arrays of low-precision copies.
        let kind = |array: usize| buffers[array].whole.kind();
        let next = next.filter(|next| *next < buffers.len() && kind(*next) == kind(array));
        let Some(next) = next.filter(|next| !self.resident.borrow().unsharded.contains(next)) else { return Ok(()) };
        self.unshard(next, &[needed, &[array]].concat())?;
        self.resident.borrow_mut().prefetched = Some(next);
        Ok(())
    }

    /// Begins to unshard an array, and reshards the least recently used one if there is no room.
    fn unshard(&self, array: usize, needed: &[usize]) -> Result<(), OpError> {
        let gone = {
            let resident = &mut *self.resident.borrow_mut();
            let full = resident.unsharded.len() >= RESIDENT_MAX;
            let oldest = resident
                .unsharded
                .iter()
                .position(|other| !needed.contains(other) && resident.prefetched != Some(*other));
            oldest.filter(|_| full).and_then(|at| resident.unsharded.remove(at))
        };
        let buffers = self.leaves.sharded_buffers();
        if let Some(gone) = gone {
            self.run_comm_op(Op::Release, &[&buffers[gone].whole])?;
        }
        let ShardedBuffer { whole, divided, shards, .. } = &buffers[array];
        self.run_comm_op(Op::Allocate, &[whole])?;
        for (place, values) in shards {
            self.run_comm_op(Op::Place, &[place, values])?;
        }
        if let Some(divided) = divided {
            self.run_collective(Op::AllGather, &[divided])?;
        }
        self.resident.borrow_mut().unsharded.push_back(array);
        Ok(())
    }

    /// Allocates and clears a gradient array, unless it has memory.
    pub(super) fn unshard_gradients(&self, grads: &dyn GradLeaves, bucket: BucketId) -> Result<(), OpError> {
        let buffers = grads.sharded_buffers();
        let Some(array) = buffers.get(bucket.index()) else { return Ok(()) };
        {
            let allocated = &mut self.resident.borrow_mut().gradients;
            allocated.resize(buffers.len(), false);
            if std::mem::replace(&mut allocated[bucket.index()], true) {
                return Ok(());
            }
        }
        self.run_comm_op(Op::Allocate, &[&array.whole])?;
        self.run_comm_op(Op::Zero, &[&array.whole])
    }

    /// Begins to sum a complete bucket of sharded gradients over the ranks, and accumulates the sums of the bucket before it. Called by
    /// the hook of [`Cx::backward`] in every micro-batch; `last` marks the last micro-batch of the step.
    pub fn reduce_gradients(&self, grads: &dyn GradLeaves, bucket: BucketId, last: bool) -> Result<(), OpError> {
        self.unshard_gradients(grads, bucket)?;
        self.accumulate_reduced(grads, last)?;
        let array = &grads.sharded_buffers()[bucket.index()];
        if let Some(divided) = &array.divided {
            self.run_collective(Op::ReduceScatter, &[divided])?;
        }
        if let Some(common) = &array.common {
            self.run_collective(Op::AllReduceShares, &[common])?;
        }
        self.resident.borrow_mut().reducing = Some(bucket);
        Ok(())
    }

    /// Adds the sums that are in flight to this rank's shards. Called after [`Cx::backward`], too. In the `last` micro-batch the shards
    /// are then summed over the ranks that keep the same ones.
    pub fn accumulate_reduced(&self, grads: &dyn GradLeaves, last: bool) -> Result<(), OpError> {
        let Some(bucket) = self.resident.borrow_mut().reducing.take() else { return Ok(()) };
        let array = &grads.sharded_buffers()[bucket.index()];
        self.run_collective(Op::Order, &[])?;
        for (place, sum) in &array.shards {
            self.run_comm_op(Op::GradAdd, &[sum, place])?;
        }
        self.run_comm_op(Op::Release, &[&array.whole])?;
        self.resident.borrow_mut().gradients[bucket.index()] = false;
        if last && self.has_replicas() {
            self.run_collective(Op::AllReduceCopies, &array.shards().collect::<SmallVec<[&Raw; 2]>>())?;
        }
        Ok(())
    }

    /// Reshards all parameter arrays, once no later record of this step reads them.
    pub fn reshard_parameters(&self) -> Result<(), OpError> {
        let unsharded = {
            let resident = &mut *self.resident.borrow_mut();
            resident.prefetched = None;
            std::mem::take(&mut resident.unsharded)
        };
        if !unsharded.is_empty() {
            // A prefetch may still be in flight.
            self.run_collective(Op::Order, &[])?;
        }
        unsharded
            .into_iter()
            .try_for_each(|array| self.run_comm_op(Op::Release, &[&self.leaves.sharded_buffers()[array].whole]))
    }
}
