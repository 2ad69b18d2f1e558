//! Collectives of a step, recorded as its operations: sums and gathers over the ranks.

use super::call::call;
use super::cx::Cx;
use super::program::Phase;
use crate::error::OpError;
use crate::op::collective::Collectives;
use crate::op::value::{BucketId, Tensor};
use crate::op::{AllGather, AllReduce, AllReduceShares, AllReduceWait, Op, Order, ReduceScatter, Zero};
use smallvec::SmallVec;

impl Cx<'_> {
    /// Begins to sum a flat gradient over the ranks, in place. The sum is recorded unless there is only one rank. Called by the hook of
    /// [`Cx::backward`].
    ///
    /// # Errors
    /// Errors of the collective; [`NoCollectives`](crate::error::OpErrorKind::NoCollectives) without [`Cx::set_collectives`].
    pub fn all_reduce(&self, flat: &tch::Tensor) -> Result<(), OpError> {
        self.summed.set(self.summed.get() + 1);
        if let Some(bucket) = self.ending.take().filter(|_| self.flops_per_byte() > 0.0) {
            // Work that follows on the device sees the sums of the other buckets.
            self.run_comm_op(Order, &[])?;
            self.last.set(Some(bucket));
        }
        self.run_collective(AllReduce, &[flat])
    }

    /// Sums a value of this step as [`Cx::all_reduce`] does.
    pub fn all_reduce_value(&self, value: &Tensor) -> Result<(), OpError> {
        self.run_value_collective(AllReduce, value)
    }

    /// Sums a value over the ranks that share the state with this one.
    pub fn all_reduce_shares(&self, value: &Tensor) -> Result<(), OpError> {
        self.run_value_collective(AllReduceShares, value)
    }

    fn run_value_collective(&self, op: impl Into<Op>, value: &Tensor) -> Result<(), OpError> {
        if self.is_single_rank() {
            return Ok(());
        }
        self.in_phase(Phase::Comm, |cx| call(cx, op, &[value]).map(|_| ()))
    }

    /// Begins to sum a flat array in place, divided into one equal part for each rank that shares the state; only this rank's part is
    /// valid afterwards. The sum is recorded unless there is only one rank. Called by the hook of [`Cx::backward`].
    pub fn reduce_scatter(&self, whole: &tch::Tensor) -> Result<(), OpError> {
        self.run_collective(ReduceScatter, &[whole])
    }

    /// Begins to gather a flat array on every rank that shares the state, from the part that each of them holds. Recorded unless there
    /// is only one rank.
    pub fn all_gather(&self, whole: &tch::Tensor) -> Result<(), OpError> {
        self.run_collective(AllGather, &[whole])
    }

    /// Makes the results of all collectives begun so far visible to later operations. Recorded where the step pauses here
    /// ([`Collectives::pauses`]).
    pub fn all_reduce_wait(&self) -> Result<(), OpError> {
        self.last.set(None);
        let pauses = self.collectives.is_some_and(Collectives::pauses);
        if pauses { self.run_comm_op(AllReduceWait, &[]) } else { Ok(()) }
    }

    /// Returns the bucket whose sum may still be in flight while those of all others are complete, until [`Cx::all_reduce_wait`].
    pub fn last_bucket(&self) -> Option<BucketId> {
        self.last.get()
    }

    /// Returns [`Collectives::norms_of`] all buckets where there is more than one rank and each bucket is measured.
    pub(super) fn norms_of<'t>(&self, buckets: impl Iterator<Item = &'t tch::Tensor>) -> Option<Vec<tch::Tensor>> {
        let others = self.collectives.filter(|collectives| collectives.ranks() > 1)?;
        buckets.map(|flat| others.norms_of(flat)).collect()
    }

    /// Returns the norms of all buckets if all of them were summed and measured since the last call.
    pub fn measured<'t>(&self, buckets: impl ExactSizeIterator<Item = &'t tch::Tensor>) -> Option<Vec<tch::Tensor>> {
        if self.summed.take() == buckets.len() { self.norms_of(buckets) } else { None }
    }

    /// Returns [`Collectives::flops_per_byte`], or 0 if there is only one rank.
    pub(super) fn flops_per_byte(&self) -> f64 {
        let others = self.collectives.filter(|collectives| collectives.ranks() > 1);
        others.map_or(0.0, Collectives::flops_per_byte)
    }

    /// Runs a collective over flat arrays. Recorded unless there is only one rank.
    pub(super) fn run_collective(&self, op: impl Into<Op>, arrays: &[&tch::Tensor]) -> Result<(), OpError> {
        if self.is_single_rank() { Ok(()) } else { self.run_comm_op(op, arrays) }
    }

    /// Records an operation on flat arrays in phase [`Phase::Comm`]: a collective, or one that changes their memory.
    pub(super) fn run_comm_op(&self, op: impl Into<Op>, arrays: &[&tch::Tensor]) -> Result<(), OpError> {
        let arrays: SmallVec<[Tensor; 2]> = arrays.iter().map(|raw| self.opt_state(raw.shallow_clone())).collect();
        self.in_phase(Phase::Comm, |cx| call(cx, op, &arrays.iter().collect::<SmallVec<[&Tensor; 2]>>()).map(|_| ()))
    }

    /// Whether other ranks hold the same shard of the state as this one.
    pub(super) fn has_replicas(&self) -> bool {
        self.collectives.is_some_and(|collectives| collectives.copies() > 1)
    }

    fn is_single_rank(&self) -> bool {
        self.collectives.is_some_and(|collectives| collectives.ranks() == 1)
    }

    /// Sets gradients to 0. The operation is recorded.
    pub fn zero<'t>(&self, arrays: impl Iterator<Item = &'t tch::Tensor>) -> Result<(), OpError> {
        let arrays: Vec<Tensor> = arrays.map(|raw| self.opt_state(raw.shallow_clone())).collect();
        self.optim(|cx| call(cx, Zero, &arrays.iter().collect::<Vec<_>>()).map(|_| ()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::HookError;
    use crate::params::ParamBuilder;
    use std::cell::Cell;
    use tch::{Device, Tensor as Raw};

    struct Ranks(u32, Cell<u32>);

    impl Collectives for Ranks {
        fn ranks(&self) -> u32 {
            self.0
        }

        fn all_reduce(&self, _: &Raw) -> Result<(), HookError> {
            self.1.set(self.1.get() + 1);
            Ok(())
        }

        fn reduce_scatter(&self, _: &Raw) -> Result<(), HookError> {
            self.1.set(self.1.get() + 100);
            Ok(())
        }

        fn all_gather(&self, _: &Raw) -> Result<(), HookError> {
            self.1.set(self.1.get() + 1000);
            Ok(())
        }

        fn order(&self) -> Result<(), HookError> {
            Ok(())
        }

        fn wait(&self) -> Result<(), HookError> {
            self.1.set(self.1.get() + 10);
            Ok(())
        }
    }

    /// Collectives run, and names of what is recorded.
    fn reduced(ranks: u32) -> (u32, Vec<&'static str>) {
        let params = ParamBuilder::new().build(0, Device::Cpu).unwrap();
        let collectives = Ranks(ranks, Cell::new(0));
        let mut cx = Cx::train(&params, 0, 0);
        cx.set_collectives(&collectives);
        cx.all_reduce(&Raw::from_slice(&[1.0f32])).unwrap();
        cx.all_reduce_value(&cx.input(Raw::from_slice(&[1.0f32]))).unwrap();
        cx.reduce_scatter(&Raw::from_slice(&[1.0f32, 2.0])).unwrap();
        cx.all_gather(&Raw::from_slice(&[1.0f32, 2.0])).unwrap();
        cx.all_reduce_wait().unwrap();
        let names = cx.with_program(|program| program.recs().iter().map(|rec| rec.op.name()).collect());
        (collectives.1.get(), names)
    }

    #[test]
    fn collectives_of_one_rank_are_left_out_and_those_of_two_are_recorded() {
        assert_eq!(reduced(1), (0, Vec::new()));
        let names = vec!["all_reduce", "all_reduce", "reduce_scatter", "all_gather", "all_reduce_wait"];
        assert_eq!(reduced(2), (1112, names));
    }
}
