//! Deferred weight gradients: products that the reverse walk computes last, so that the sums of the buckets it reaches last overlap with them.
//!
//! The walk reaches the model's first layers last. Where those have many weights and little to compute, the sums of their gradients
//! would have no computation to overlap with. A product that only computes a weight's gradient can run at any time after its operands:
//! the products of some buckets are deferred to the end.
//!
//! **Invariant:** which products are deferred depends on the program only, so that all ranks sum in one order, however they execute
//! it. A deferred product holds its operands until it runs.

use super::leaf::GradLeaves;
use super::program::{Program, Rec};
use super::scope::ScopeId;
use crate::op::attr::GradDest;
use crate::op::value::{BucketId, ParamId, Tensor};
use crate::op::{LinearBackward, Op};
use smallvec::SmallVec;
use std::cell::RefCell;

/// Bytes per gradient element.
const ELEMENT_BYTES: f64 = 4.0;
/// Smallest gain, as a share of the walk's operations, for which a bucket is deferred.
const GAIN_MIN: f64 = 0.002;

type CallOperands<'t> = SmallVec<[&'t Tensor; 5]>;

/// The operand of [`LinearBackward`] that receives the weight's gradient.
const DW: usize = 3;

pub(super) struct DeferredProduct {
    pub(super) op: Op,
    pub(super) ins: SmallVec<[Tensor; 4]>,
    pub(super) scope: ScopeId,
}

#[derive(Default)]
pub(super) struct DeferredBucket {
    /// Products in the order of the walk.
    pub(super) products: Vec<DeferredProduct>,
    /// Parameters whose contributions count once the products have run.
    pub(super) contributed: Vec<ParamId>,
}

/// The products deferred so far.
pub(super) struct DeferredWgrad {
    /// Deferred products by bucket; `None` for a bucket that is not deferred.
    buckets: RefCell<Vec<Option<DeferredBucket>>>,
}

impl DeferredWgrad {
    /// Defers the buckets that are marked in `deferred`; see [`WalkCosts::deferred_buckets`].
    pub(super) fn new(deferred: &[bool]) -> Self {
        Self { buckets: RefCell::new(deferred.iter().map(|deferred| deferred.then(DeferredBucket::default)).collect()) }
    }

    /// Takes the product of a weight's gradient out of `op` where its bucket is deferred. Returns the operation that is left to be
    /// run now, if there is one, and its operands.
    pub(super) fn defer<'t>(
        &self,
        op: Op,
        ins: &[&'t Tensor],
        scope: ScopeId,
        bucket_of: impl Fn(&Tensor) -> Option<BucketId>,
    ) -> Option<(Op, CallOperands<'t>)> {
        let all = || ins.iter().copied().collect();
        let Op::LinearBackward(LinearBackward { dx, dw, db }) = op else { return Some((op, all())) };
        if !dw.is_storage() {
            return Some((op, all()));
        }
        let later = &mut *self.buckets.borrow_mut();
        let later = bucket_of(ins[DW]).and_then(|bucket| later.get_mut(bucket.index())?.as_mut());
        let Some(later) = later else { return Some((op, all())) };
        let product = LinearBackward { dx: false, dw, db: GradDest::Skip }.into();
        later.products.push(DeferredProduct {
            op: product,
            ins: ins[..=DW].iter().map(|t| (*t).clone()).collect(),
            scope,
        });
        // The bias's gradient may lie in another bucket, and takes no time.
        let rest = ins[..DW].iter().chain(&ins[DW + 1..]).copied().collect();
        (dx || db != GradDest::Skip).then_some((LinearBackward { dx, dw: GradDest::Skip, db }.into(), rest))
    }

    /// Holds a contribution back if the parameter's bucket is deferred. Returns whether it is.
    pub(super) fn hold(&self, bucket: BucketId, id: ParamId) -> bool {
        match self.buckets.borrow_mut().get_mut(bucket.index()) {
            Some(Some(later)) => {
                later.contributed.push(id);
                true
            }
            _ => false,
        }
    }

    /// Takes the deferred products in the order of the buckets. Later products are not deferred.
    pub(super) fn take(&self) -> Vec<DeferredBucket> {
        self.buckets.take().into_iter().flatten().collect()
    }
}

/// Cost model of a reverse walk, in floating-point operations.
pub(super) struct WalkCosts {
    /// Operations of the walk so far.
    done: f64,
    buckets: Vec<BucketCost>,
}

#[derive(Debug, Clone, Copy, Default)]
struct BucketCost {
    /// Operations of the walk until the bucket's last gradient is there.
    ready: f64,
    /// Operations of the bucket's weight gradients, which can be deferred.
    products: f64,
    /// Operations that the device can do while the ranks sum the bucket.
    sum: f64,
}

impl WalkCosts {
    /// Returns the costs of a walk in which summing one byte takes as long as `flops_per_byte` operations.
    pub(super) fn new(grads: &dyn GradLeaves, flops_per_byte: f64) -> Self {
        let sum = |bucket| grads.flat(BucketId(bucket as u32)).numel() as f64 * ELEMENT_BYTES * flops_per_byte;
        Self {
            done: 0.0,
            buckets: (0..grads.buckets()).map(|b| BucketCost { sum: sum(b), ..BucketCost::default() }).collect(),
        }
    }

    /// Adds the backward cost of a record.
    pub(super) fn pass(&mut self, program: &Program, rec: &Rec, grads: &dyn GradLeaves) {
        let forward = program.cost(rec) as f64;
        // Each product of the forward pass makes two in the backward pass.
        self.done += 2.0 * forward;
        for (at, val) in rec.ins.iter().enumerate() {
            let value = program.val(*val);
            let Some(id) = value.role.param().filter(|_| value.requires_grad) else { continue };
            let bucket = &mut self.buckets[grads.bucket_of(id).index()];
            bucket.ready = self.done;
            if at == 1 && matches!(rec.op, Op::Linear(_)) {
                bucket.products += forward;
            }
        }
    }

    /// Chooses the buckets to defer: greedily the one that hides most of the sums, as long as the gain is at least [`GAIN_MIN`].
    pub(super) fn deferred_buckets(&self) -> Vec<bool> {
        let mut deferred = vec![false; self.buckets.len()];
        let mut exposed = self.exposed(&deferred);
        loop {
            let tried = (0..deferred.len()).filter(|b| !deferred[*b] && self.buckets[*b].products > 0.0).map(|b| {
                let mut more = deferred.clone();
                more[b] = true;
                (self.exposed(&more), b)
            });
            let Some((least, b)) = tried.min_by(|a, b| a.0.total_cmp(&b.0)) else { return deferred };
            if exposed - least < GAIN_MIN * self.done {
                return deferred;
            }
            deferred[b] = true;
            exposed = least;
        }
    }

    /// Returns the operations' worth of summing that is left after all computation, if these buckets are deferred.
    fn exposed(&self, deferred: &[bool]) -> f64 {
        let postponed = |before: f64| -> f64 {
            let all = self.buckets.iter().zip(deferred);
            all.filter(|(cost, deferred)| **deferred && cost.ready <= before).map(|(cost, _)| cost.products).sum()
        };
        let mut now = self.done - postponed(self.done);
        let mut sums: Vec<(f64, f64)> = Vec::with_capacity(deferred.len());
        for (cost, deferred) in self.buckets.iter().zip(deferred) {
            if *deferred {
                now += cost.products;
                sums.push((now, cost.sum));
            } else {
                sums.push((cost.ready - postponed(cost.ready), cost.sum));
            }
        }
        sums.sort_by(|a, b| a.0.total_cmp(&b.0));
        sums.iter().fold(0.0_f64, |end, (ready, sum)| end.max(*ready) + sum) - self.done
    }
}
