//! Gradients of weights that are computed last, so that the sums of those the walk reaches last travel meanwhile.
//!
//! The walk reaches the model's first layers last. Where those have many weights and little to compute, their gradients would be
//! summed over the ranks with nothing left to do. Products that only gradients of weights wait for can come at any time behind
//! their operands: those of some buckets are put off to the end.
//!
//! **Invariant:** which are put off depends on the program only, so that all ranks sum in one order, however they execute it. Put off,
//! they hold their operands until then.

use super::leaf::GradLeaves;
use super::program::{Program, Rec};
use super::scope::ScopeId;
use crate::op::Op;
use crate::op::attr::Into;
use crate::op::value::{BucketId, ParamId, Tensor};
use smallvec::SmallVec;
use std::cell::RefCell;

/// Bytes of an element of a gradient.
const ELEMENT_BYTES: f64 = 4.0;
/// A bucket is put off only where that saves as much of the walk.
const GAIN_MIN: f64 = 0.002;

/// Operands of one call.
type Operands<'t> = SmallVec<[&'t Tensor; 5]>;

/// The operand of [`Op::LinearBackward`] that receives the weight's gradient.
const DW: usize = 3;

/// One product that was put off.
pub(super) struct Product {
    pub(super) op: Op,
    pub(super) ins: SmallVec<[Tensor; 4]>,
    pub(super) scope: ScopeId,
}

/// What of one bucket was put off.
#[derive(Default)]
pub(super) struct Later {
    /// In the order of the walk.
    pub(super) products: Vec<Product>,
    /// Contributions that count when the products are there.
    pub(super) contributed: Vec<ParamId>,
}

/// The buckets that are put off.
pub(super) struct Late {
    /// By bucket: what was put off, `None` where nothing is.
    buckets: RefCell<Vec<Option<Later>>>,
}

impl Late {
    /// Puts off the buckets that [`Costs::late`] named.
    pub(super) fn new(late: &[bool]) -> Self {
        Self { buckets: RefCell::new(late.iter().map(|late| late.then(Later::default)).collect()) }
    }

    /// Takes the product of a weight's gradient out of `op` where its bucket is put off. What is left to be computed now, if
    /// anything is, and its operands.
    pub(super) fn put_off<'t>(
        &self,
        op: Op,
        ins: &[&'t Tensor],
        scope: ScopeId,
        bucket_of: impl Fn(&Tensor) -> Option<BucketId>,
    ) -> Option<(Op, Operands<'t>)> {
        let all = || ins.iter().copied().collect();
        let Op::LinearBackward { dx, dw, db } = op else { return Some((op, all())) };
        if !dw.is_storage() {
            return Some((op, all()));
        }
        let later = &mut *self.buckets.borrow_mut();
        let later = bucket_of(ins[DW]).and_then(|bucket| later.get_mut(bucket.index())?.as_mut());
        let Some(later) = later else { return Some((op, all())) };
        let product = Op::LinearBackward { dx: false, dw, db: Into::Skip };
        later.products.push(Product { op: product, ins: ins[..=DW].iter().map(|t| (*t).clone()).collect(), scope });
        // The bias's gradient may lie in another bucket, and takes no time.
        let rest = ins[..DW].iter().chain(&ins[DW + 1..]).copied().collect();
        (dx || db != Into::Skip).then_some((Op::LinearBackward { dx, dw: Into::Skip, db }, rest))
    }

    /// Keeps a contribution to a parameter of a bucket that is put off; whether it did.
    pub(super) fn keep(&self, bucket: BucketId, id: ParamId) -> bool {
        match self.buckets.borrow_mut().get_mut(bucket.index()) {
            Some(Some(later)) => {
                later.contributed.push(id);
                true
            }
            _ => false,
        }
    }

    /// What was put off, in the order of the buckets; nothing is from now on.
    pub(super) fn take(&self) -> Vec<Later> {
        self.buckets.take().into_iter().flatten().collect()
    }
}

/// What a walk computes and sums, in floating-point operations.
pub(super) struct Costs {
    /// Of the walk so far.
    done: f64,
    /// By bucket.
    buckets: Vec<Cost>,
}

/// One bucket.
#[derive(Debug, Clone, Copy, Default)]
struct Cost {
    /// The walk's operations when the last gradient is there.
    ready: f64,
    /// Of these, what can be put off.
    products: f64,
    /// Operations that the device could do while the ranks sum the bucket.
    sum: f64,
}

impl Costs {
    /// Of a walk in which summing a byte takes as long as computing `flops_per_byte`.
    pub(super) fn new(grads: &dyn GradLeaves, flops_per_byte: f64) -> Self {
        let sum = |bucket| grads.flat(BucketId(bucket as u32)).numel() as f64 * ELEMENT_BYTES * flops_per_byte;
        Self { done: 0.0, buckets: (0..grads.buckets()).map(|b| Cost { sum: sum(b), ..Cost::default() }).collect() }
    }

    /// The walk goes back over a record.
    pub(super) fn pass(&mut self, program: &Program, rec: &Rec, grads: &dyn GradLeaves) {
        let forward = program.cost(rec) as f64;
        // Each product forward is two backward.
        self.done += 2.0 * forward;
        for (at, val) in rec.ins.iter().enumerate() {
            let value = program.val(*val);
            let Some(id) = value.role.param().filter(|_| value.requires_grad) else { continue };
            let bucket = &mut self.buckets[grads.bucket_of(id).index()];
            bucket.ready = self.done;
            if at == 1 && matches!(rec.op, Op::Linear { .. }) {
                bucket.products += forward;
            }
        }
    }

    /// The buckets to put off: one after the other, the one that hides most, as long as that is worth it.
    pub(super) fn late(&self) -> Vec<bool> {
        let mut late = vec![false; self.buckets.len()];
        let mut exposed = self.exposed(&late);
        loop {
            let tried = (0..late.len()).filter(|b| !late[*b] && self.buckets[*b].products > 0.0).map(|b| {
                let mut more = late.clone();
                more[b] = true;
                (self.exposed(&more), b)
            });
            let Some((least, b)) = tried.min_by(|a, b| a.0.total_cmp(&b.0)) else { return late };
            if exposed - least < GAIN_MIN * self.done {
                return late;
            }
            late[b] = true;
            exposed = least;
        }
    }

    /// Operations' worth of summing that is left when everything is computed.
    fn exposed(&self, late: &[bool]) -> f64 {
        let put_off = |before: f64| -> f64 {
            let all = self.buckets.iter().zip(late);
            all.filter(|(cost, late)| **late && cost.ready <= before).map(|(cost, _)| cost.products).sum()
        };
        let mut now = self.done - put_off(self.done);
        let mut sums: Vec<(f64, f64)> = Vec::with_capacity(late.len());
        for (cost, late) in self.buckets.iter().zip(late) {
            if *late {
                now += cost.products;
                sums.push((now, cost.sum));
            } else {
                sums.push((cost.ready - put_off(cost.ready), cost.sum));
            }
        }
        sums.sort_by(|a, b| a.0.total_cmp(&b.0));
        sums.iter().fold(0.0_f64, |end, (ready, sum)| end.max(*ready) + sum) - self.done
    }
}
