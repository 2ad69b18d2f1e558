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
use super::program::{Phase, Rec};
use super::sharded_buffer::ShardedBuffer;
use crate::error::OpError;
use crate::op::value::{BucketId, Tensor};
use crate::op::{
    AllGather, AllReduceCopies, AllReduceShares, Allocate, GradAdd, Order, ReduceScatter, Release, Restore, Zero,
};
use smallvec::SmallVec;
use tch::Tensor as Raw;

/// Most parameter arrays that are resident at a time: the one being read, the one before it, and the next.
const RESIDENT_MAX: usize = 3;

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
                self.run_collective(Order, &[])?;
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
        if self.leaves.sharded_buffers().is_empty() || !rec.op.row().is_view {
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
            self.run_comm_op(Release, &[&buffers[gone].whole])?;
        }
        let ShardedBuffer { whole, divided, shards, .. } = &buffers[array];
        self.run_comm_op(Allocate, &[whole])?;
        for (place, values) in shards {
            self.run_comm_op(Restore, &[place, values])?;
        }
        if let Some(divided) = divided {
            self.run_collective(AllGather, &[divided])?;
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
        self.run_comm_op(Allocate, &[&array.whole])?;
        self.run_comm_op(Zero, &[&array.whole])
    }

    /// Begins to sum a complete bucket of sharded gradients over the ranks, and accumulates the sums of the bucket before it. Called by
    /// the hook of [`Cx::backward`] in every micro-batch; `last` marks the last micro-batch of the step.
    pub fn reduce_gradients(&self, grads: &dyn GradLeaves, bucket: BucketId, last: bool) -> Result<(), OpError> {
        self.unshard_gradients(grads, bucket)?;
        self.accumulate_reduced(grads, last)?;
        let array = &grads.sharded_buffers()[bucket.index()];
        if let Some(divided) = &array.divided {
            self.run_collective(ReduceScatter, &[divided])?;
        }
        if let Some(common) = &array.common {
            self.run_collective(AllReduceShares, &[common])?;
        }
        self.resident.borrow_mut().reducing = Some(bucket);
        Ok(())
    }

    /// Adds the sums that are in flight to this rank's shards. Called after [`Cx::backward`], too. In the `last` micro-batch the shards
    /// are then summed over the ranks that keep the same ones.
    pub fn accumulate_reduced(&self, grads: &dyn GradLeaves, last: bool) -> Result<(), OpError> {
        let Some(bucket) = self.resident.borrow_mut().reducing.take() else { return Ok(()) };
        let array = &grads.sharded_buffers()[bucket.index()];
        self.run_collective(Order, &[])?;
        for (place, sum) in &array.shards {
            self.run_comm_op(GradAdd, &[sum, place])?;
        }
        self.run_comm_op(Release, &[&array.whole])?;
        self.resident.borrow_mut().gradients[bucket.index()] = false;
        if last && self.has_replicas() {
            self.run_collective(AllReduceCopies, &array.shards().collect::<SmallVec<[&Raw; 2]>>())?;
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
            self.run_collective(Order, &[])?;
        }
        unsharded
            .into_iter()
            .try_for_each(|array| self.run_comm_op(Release, &[&self.leaves.sharded_buffers()[array].whole]))
    }
}
