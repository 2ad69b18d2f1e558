//! Reverse mode: a reverse walk over the taped records that emits the backward records into the same list.
//!
//! Before running, one pass counts how many records will contribute to each parameter. When the last contribution is
//! enqueued the parameter is ready; when all parameters of a bucket are, the bucket's hook fires, exactly once. A
//! parameter without contributions is ready at once with the zeros in its slot, so no bucket ever waits.

use super::call::call;
use super::cx::Cx;
use super::deferred_wgrad::{DeferredProduct, DeferredWgrad, WalkCosts};
use super::leaf::GradLeaves;
use super::program::{Phase, Program, Rec};
use super::tape_node::{TapeNode, Taped};
use crate::backend::torch::safe::version;
use crate::error::{HookError, OpError, OpErrorKind};
use crate::op::attr::{Axes, GradDest};
use crate::op::value::{BucketId, Meta, ParamId, Role, Tensor, Val};
use crate::op::vjp::{Emit, Kept, RESULT_SLOT, Results, Vjp};
use crate::op::{Binary, Cast, GradAdd, Ones, Op, Reshape};
use smallvec::SmallVec;
use std::cell::RefCell;

/// Elements from which on a gradient is written instead of cleared and added to. Smaller ones are cleared together at no cost.
const WRITTEN_MIN: usize = 1 << 18;
/// Largest contribution, in elements, that is added together with the others of its bucket instead of by itself.
const SMALL_MAX: i64 = 1 << 16;

/// Called with each bucket when its last gradient has been enqueued.
pub type OnReady<'a> = &'a mut dyn FnMut(BucketId, &tch::Tensor) -> Result<(), HookError>;

/// Facts about the tape that the walk needs before it starts.
struct Reach {
    /// Values the loss depends on through a gradient, by value.
    reached: Vec<bool>,
    /// Contributions still to come, by parameter.
    pending: Vec<u32>,
    /// Parameters to which a product contributes as to its weight.
    products: Vec<bool>,
    /// Buckets whose weight gradients are deferred to the end of the walk.
    deferred: Vec<bool>,
}

/// Whether a record of a segment was taped when it ran.
fn taped(program: &Program, rec: &Rec) -> bool {
    rec.op.row().vjp.is_some() && rec.outs().any(|v| program.val(v).requires_grad)
}

/// Gradients that wait for the record that made their value, by value.
struct ReverseWalk {
    reached: Vec<bool>,
    slots: Vec<Option<Tensor>>,
}

impl ReverseWalk {
    /// Moves the gradients of dropped values to the recomputed values that replace them, given as (old, new).
    fn rename(&mut self, made: &[(Val, Val)]) {
        let room = made.iter().map(|(_, new)| new.index() + 1).max().unwrap_or(0).max(self.slots.len());
        self.reached.resize(room, false);
        self.slots.resize(room, None);
        for (old, new) in made {
            self.reached[new.index()] = self.reached[old.index()];
            self.slots[new.index()] = self.slots[old.index()].take();
        }
    }
}

/// Parameters and buckets whose gradients are not complete yet.
struct PendingBuckets<'a, 'b, 'p> {
    cx: &'a Cx<'p>,
    pending: Vec<u32>,
    waiting: Vec<u32>,
    open: usize,
    grads: &'a dyn GradLeaves,
    deferred: &'a DeferredWgrad,
    on_ready: OnReady<'b>,
    /// Whether the ranks measure norms while they sum. Then no sum is read before the last bucket's is there.
    measured: bool,
    /// Small contributions that are added when their bucket is ready: parameter, slot and summand.
    small: Vec<(ParamId, Tensor, Tensor)>,
}

impl PendingBuckets<'_, '_, '_> {
    /// Adds a contribution to the gradient in `slot`, at once or together with others of its bucket.
    fn add(&mut self, id: ParamId, slot: Tensor, gradient: Tensor) -> Result<(), OpError> {
        let [held, more] = [&slot, &gradient].map(Tensor::meta);
        if held.numel() > SMALL_MAX || held.kind != more.kind {
            return call(self.cx, GradAdd, &[&slot, &gradient]).map(|_| ());
        }
        // One batched addition may hold each parameter once only.
        if self.small.iter().any(|(known, ..)| *known == id) {
            self.add_small(self.grads.bucket_of(id))?;
        }
        self.small.push((id, slot, gradient));
        Ok(())
    }

    fn add_small(&mut self, bucket: BucketId) -> Result<(), OpError> {
        let all = std::mem::take(&mut self.small);
        let now: Vec<_>;
        (now, self.small) = all.into_iter().partition(|(id, ..)| self.grads.bucket_of(*id) == bucket);
        if now.is_empty() {
            return Ok(());
        }
        let operands: Vec<&Tensor> = now.iter().flat_map(|(_, slot, gradient)| [slot, gradient]).collect();
        call(self.cx, GradAdd, &operands).map(|_| ())
    }

    fn contributed(&mut self, id: ParamId) -> Result<(), OpError> {
        if self.deferred.hold(self.grads.bucket_of(id), id) {
            return Ok(());
        }
        let pending = &mut self.pending[id.index()];
        *pending -= 1;
        if *pending == 0 { self.param_ready(id) } else { Ok(()) }
    }

    fn param_ready(&mut self, id: ParamId) -> Result<(), OpError> {
        let bucket = self.grads.bucket_of(id);
        let waiting = &mut self.waiting[bucket.index()];
        *waiting -= 1;
        if *waiting > 0 {
            return Ok(());
        }
        self.add_small(bucket)?;
        self.open -= 1;
        self.cx
            .ending
            .set((self.open == 0 && self.grads.sharded_buffers().is_empty() && !self.measured).then_some(bucket));
        let result = (self.on_ready)(bucket, self.grads.flat(bucket));
        self.cx.ending.set(None);
        result.map_err(|error| self.cx.fail("grad_ready", OpErrorKind::Hook(error)))
    }
}

struct Emitter<'a, 'p> {
    cx: &'a Cx<'p>,
    grads: &'a dyn GradLeaves,
    deferred: &'a DeferredWgrad,
    /// Parameters whose gradient slots have not been written yet.
    blank: RefCell<Vec<bool>>,
    /// Gradient slots already entered into the program, by parameter.
    slots: RefCell<Vec<Option<Tensor>>>,
}

impl Emitter<'_, '_> {
    fn slot(&self, id: ParamId) -> Result<Tensor, OpError> {
        if let Some(known) = &self.slots.borrow()[id.index()] {
            return Ok(known.clone());
        }
        self.cx.unshard_gradients(self.grads, self.grads.bucket_of(id))?;
        let slot = self.cx.leaf(self.grads.slot(id).shallow_clone(), Role::Grad(id), false);
        self.slots.borrow_mut()[id.index()] = Some(slot.clone());
        Ok(slot)
    }

    /// Whether the gradient slot of a parameter has not been written yet. A caller that gets `true` must write the whole slot.
    fn begin(&self, id: ParamId) -> bool {
        std::mem::take(&mut self.blank.borrow_mut()[id.index()])
    }

    fn param_of(&self, val: Val) -> Option<ParamId> {
        self.cx.with_program(|p| p.val(val).role.param())
    }

    /// The bucket whose gradients `storage` holds.
    fn bucket_at(&self, storage: &Tensor) -> Option<BucketId> {
        match self.cx.with_program(|p| p.val(storage.val()).role) {
            Role::Grad(id) => Some(self.grads.bucket_of(id)),
            _ => None,
        }
    }
}

impl Emit for Emitter<'_, '_> {
    fn emit(&self, op: Op, ins: &[&Tensor]) -> Result<Results, OpError> {
        match self.deferred.defer(op, ins, self.cx.scope.get(), |storage| self.bucket_at(storage)) {
            Some((op, ins)) => call(self.cx, op, &ins),
            None => Ok(Results::new()),
        }
    }

    fn meta(&self, val: Val) -> Meta {
        self.cx.with_program(|p| p.val(val).meta.clone())
    }

    fn storage(&self, val: Val) -> Result<Option<(Tensor, GradDest)>, OpError> {
        let Some(id) = self.param_of(val) else { return Ok(None) };
        Ok(Some((self.slot(id)?, if self.begin(id) { GradDest::Write } else { GradDest::Add })))
    }

    fn fail(&self, op: &Op, kind: OpErrorKind) -> OpError {
        self.cx.fail(op.name(), kind)
    }
}

impl Cx<'_> {
    /// Runs the reverse pass of a scalar `loss` and adds each parameter's gradient to its slot in `grads`.
    ///
    /// Buckets fire `on_ready` in an order that depends on the program only. The tape is used up;
    /// another micro-batch may follow in the same context.
    ///
    /// # Errors
    /// When the loss is not a scalar or depends on nothing, when a saved tensor was written since the forward pass, or when the hook fails.
    pub fn backward(&self, loss: &Tensor, grads: &dyn GradLeaves, on_ready: OnReady<'_>) -> Result<(), OpError> {
        self.backward_to(loss, grads, on_ready, &[]).map(|_| ())
    }

    /// [`Cx::backward`] that also returns the gradients of `wanted` variables, `None` where the loss does not depend on one.
    pub fn backward_to(
        &self,
        loss: &Tensor,
        grads: &dyn GradLeaves,
        on_ready: OnReady<'_>,
        wanted: &[&Tensor],
    ) -> Result<Vec<Option<tch::Tensor>>, OpError> {
        if !self.taping.get() || self.state.borrow().nodes.is_empty() {
            return Err(self.fail("backward", OpErrorKind::NoTape));
        }
        if loss.meta().numel() != 1 || !loss.requires_grad() {
            return Err(self.fail("backward", OpErrorKind::Loss { found: loss.shape().to_vec() }));
        }
        let place = self.scope.get();
        self.taping.set(false);
        self.phase.set(Phase::Backward);
        let result = self.walk_nodes(loss, grads, on_ready, wanted);
        self.phase.set(Phase::Forward);
        self.scope.set(place);
        self.taping.set(true);
        result
    }

    fn walk_nodes(
        &self,
        loss: &Tensor,
        grads: &dyn GradLeaves,
        on_ready: OnReady<'_>,
        wanted: &[&Tensor],
    ) -> Result<Vec<Option<tch::Tensor>>, OpError> {
        super::cast::forget(self);
        let nodes = std::mem::take(&mut self.state.borrow_mut().nodes);
        let reach = self.reach(&nodes, loss, grads);
        let blank = if self.stale.take() { self.clear(grads, &reach)? } else { vec![false; grads.count()] };
        let open = grads.buckets();
        let mut waiting = vec![0; open];
        let ids = || (0..grads.count() as u32).map(ParamId);
        ids().for_each(|id| waiting[grads.bucket_of(id).index()] += 1);
        let idle: Vec<ParamId> = ids().filter(|id| reach.pending[id.index()] == 0).collect();
        let deferred = &DeferredWgrad::new(&reach.deferred);
        let pending = reach.pending;
        let flats = (0..open as u32).map(|bucket| grads.flat(BucketId(bucket)));
        let measured = self.norms_of(flats).is_some();
        let small = Vec::new();
        let mut ready = PendingBuckets { cx: self, pending, waiting, open, grads, deferred, on_ready, measured, small };
        idle.into_iter().try_for_each(|id| ready.param_ready(id))?;
        let blank = RefCell::new(blank);
        let slots = RefCell::new(vec![None; grads.count()]);
        let emitter = Emitter { cx: self, grads, deferred, blank, slots };
        let mut slots: Vec<Option<Tensor>> = vec![None; reach.reached.len()];
        slots[loss.val().0 as usize] = Some(self.seed(loss)?);
        if let Some(id) = emitter.param_of(loss.val()) {
            self.deliver_param(&emitter, &mut ready, id, slots[loss.val().0 as usize].take())?;
        }
        let mut walk = ReverseWalk { reached: reach.reached, slots };
        self.reverse_all(nodes, &emitter, &mut walk, &mut ready)?;
        for bucket in deferred.take() {
            for DeferredProduct { op, ins, scope } in bucket.products {
                self.scope.set(scope);
                call(self, op, &ins.iter().collect::<SmallVec<[&Tensor; 4]>>())?;
            }
            bucket.contributed.into_iter().try_for_each(|id| ready.contributed(id))?;
        }
        let mut slots = walk.slots;
        Ok(wanted.iter().map(|t| slots[t.val().0 as usize].take().map(|g| g.raw().shallow_clone())).collect())
    }

    /// Clears the gradients if [`Cx::clear_gradients`] left that to a backward pass which did not run.
    pub fn clear_stale_gradients(&self, grads: &dyn GradLeaves) -> Result<(), OpError> {
        if !self.stale.take() {
            return Ok(());
        }
        let all = grads.without(&[]).map_err(|kind| self.fail("zero", kind))?;
        self.zero(all.iter())
    }

    /// Clears all gradients except those that a single product writes. Returns by parameter whether its slot was left uncleared.
    fn clear(&self, grads: &dyn GradLeaves, reach: &Reach) -> Result<Vec<bool>, OpError> {
        let plain = grads.sharded_buffers().is_empty();
        let written = |id: &ParamId| {
            let at = id.index();
            plain && reach.products[at] && reach.pending[at] == 1 && grads.slot(*id).numel() >= WRITTEN_MIN
        };
        let ids: Vec<ParamId> = (0..grads.count() as u32).map(ParamId).filter(written).collect();
        let rest = grads.without(&ids).map_err(|kind| self.fail("zero", kind))?;
        if !rest.is_empty() {
            self.zero(rest.iter())?;
        }
        let mut blank = vec![false; grads.count()];
        ids.iter().for_each(|id| blank[id.index()] = true);
        Ok(blank)
    }

    /// Gradient of the loss with respect to itself: 1, or the loss scale.
    fn seed(&self, loss: &Tensor) -> Result<Tensor, OpError> {
        let meta = loss.meta();
        let shape = Axes::from_slice(&meta.shape);
        let Some(scale) = self.loss_scale.borrow().as_ref().map(tch::Tensor::shallow_clone) else {
            let ones = Ones { shape, kind: meta.kind, device: meta.device };
            return Ok(call(self, ones, &[])?.swap_remove(0));
        };
        let mut scale = self.leaf(scale, Role::OptState, false);
        if scale.kind() != meta.kind {
            scale = call(self, Cast { to: meta.kind }, &[&scale])?.swap_remove(0);
        }
        Ok(call(self, Reshape { shape }, &[&scale])?.swap_remove(0))
    }

    /// Computes which values the loss reaches, how many contributions each parameter gets, and which weight gradients are deferred.
    fn reach(&self, nodes: &[TapeNode], loss: &Tensor, grads: &dyn GradLeaves) -> Reach {
        let rate = if grads.sharded_buffers().is_empty() { self.flops_per_byte() } else { 0.0 };
        let mut costs = (rate > 0.0).then(|| WalkCosts::new(grads, rate));
        self.with_program(|program| {
            let reached = vec![false; program.values()];
            let pending = vec![0; grads.count()];
            let mut reach = Reach { reached, pending, products: vec![false; grads.count()], deferred: Vec::new() };
            let arrive = |reach: &mut Reach, val: Val| {
                let value = program.val(val);
                if value.requires_grad {
                    reach.reached[val.0 as usize] = true;
                    if let Some(id) = value.role.param() {
                        reach.pending[id.index()] += 1;
                    }
                }
            };
            arrive(&mut reach, loss.val());
            let mut pass = |reach: &mut Reach, rec: &Rec| {
                if rec.outs().any(|v| reach.reached[v.0 as usize]) {
                    rec.ins.iter().for_each(|v| arrive(reach, *v));
                    if let (Op::Linear(_), Some(id)) =
                        (&rec.op, rec.ins.get(1).and_then(|w| program.val(*w).role.param()))
                    {
                        reach.products[id.index()] = true;
                    }
                    costs.iter_mut().for_each(|costs| costs.pass(program, rec, grads));
                }
            };
            for node in nodes.iter().rev() {
                match node {
                    TapeNode::Rec(taped) => pass(&mut reach, &program.recs()[taped.rec as usize]),
                    TapeNode::Segment(segment) => {
                        let recs = &program.recs()[segment.range()];
                        recs.iter().rev().filter(|rec| taped(program, rec)).for_each(|rec| pass(&mut reach, rec));
                    }
                }
            }
            reach.deferred = costs.map_or_else(Vec::new, |costs| costs.deferred_buckets());
            reach
        })
    }

    fn reverse_all(
        &self,
        nodes: Vec<TapeNode>,
        emitter: &Emitter<'_, '_>,
        walk: &mut ReverseWalk,
        ready: &mut PendingBuckets<'_, '_, '_>,
    ) -> Result<(), OpError> {
        for node in nodes.into_iter().rev() {
            match node {
                TapeNode::Rec(taped) => self.reverse(taped, emitter, walk, ready)?,
                TapeNode::Segment(segment) => {
                    if !segment.values().any(|v| walk.reached[v]) {
                        continue;
                    }
                    let (again, made) = self.recompute(segment)?;
                    walk.rename(&made);
                    self.phase.set(Phase::Backward);
                    self.reverse_all(again, emitter, walk, ready)?;
                }
            }
        }
        Ok(())
    }

    /// Reverses one record: checks the saved tensors, runs the rule, delivers the gradients and frees the saved tensors.
    fn reverse(
        &self,
        node: Taped,
        emitter: &Emitter<'_, '_>,
        walk: &mut ReverseWalk,
        ready: &mut PendingBuckets<'_, '_, '_>,
    ) -> Result<(), OpError> {
        let rec: Rec = self.with_program(|p| p.recs()[node.rec as usize].clone());
        if !rec.outs().any(|v| walk.reached[v.0 as usize]) {
            return Ok(());
        }
        self.scope.set(rec.scope);
        let gouts: SmallVec<[Option<Tensor>; 2]> = rec.outs().map(|v| walk.slots[v.0 as usize].take()).collect();
        let needs = self.needs(&rec);
        let mut gradients = SmallVec::new();
        if gouts.iter().any(Option::is_some) {
            self.check_versions(&rec, &node.kept)?;
            let rule = rec.op.row().vjp.ok_or_else(|| self.fail(rec.op.name(), OpErrorKind::NotDifferentiable))?;
            let vjp = Vjp { emit: emitter, op: &rec.op, ins: &rec.ins, needs: &needs, kept: &node.kept, gouts: &gouts };
            gradients = rule(&rec.op, &vjp)?;
        }
        drop(node.kept);
        gradients.resize(rec.ins.len(), None);
        for (i, (val, gradient)) in rec.ins.iter().zip(gradients).enumerate() {
            if needs[i] {
                self.deliver(emitter, ready, *val, gradient, &mut walk.slots)?;
            }
        }
        Ok(())
    }

    fn needs(&self, rec: &Rec) -> SmallVec<[bool; 8]> {
        self.with_program(|p| rec.ins.iter().map(|v| p.val(*v).requires_grad).collect())
    }

    fn check_versions(&self, rec: &Rec, kept: &[Kept]) -> Result<(), OpError> {
        for k in kept {
            let found = version(k.tensor.raw());
            if found != k.version {
                let by = self.writer(rec, k.slot);
                let kind = OpErrorKind::Version { slot: k.slot, by, found, expected: k.version };
                return Err(self.fail(rec.op.name(), kind));
            }
        }
        Ok(())
    }

    /// Describes the operation that last wrote a record's saved operand or result in place.
    fn writer(&self, rec: &Rec, slot: u8) -> String {
        let val = match slot.checked_sub(RESULT_SLOT) {
            None => rec.ins.get(usize::from(slot)).copied(),
            Some(result) => rec.outs().nth(usize::from(result)),
        };
        self.with_program(|p| {
            let writes = |rec: &&Rec| (0..rec.ins.len()).any(|i| Some(rec.ins[i]) == val && rec.op.writes(i));
            let Some(rec) = p.recs().iter().rev().find(writes) else {
                return "something outside the step, or through a view of it,".to_owned();
            };
            let name = if let Op::Aten(aten) = &rec.op { aten.0.name() } else { rec.op.name() };
            format!("{name} in \"{}\"", p.place(rec.scope))
        })
    }

    /// Adds a gradient to the value it belongs to. Sums are formed in the order of the walk, hence deterministic.
    fn deliver(
        &self,
        emitter: &Emitter<'_, '_>,
        ready: &mut PendingBuckets<'_, '_, '_>,
        val: Val,
        gradient: Option<Tensor>,
        slots: &mut [Option<Tensor>],
    ) -> Result<(), OpError> {
        if let Some(id) = emitter.param_of(val) {
            return self.deliver_param(emitter, ready, id, gradient);
        }
        let slot = &mut slots[val.0 as usize];
        *slot = match (slot.take(), gradient) {
            (Some(a), Some(b)) => Some(call(self, Binary::Add, &[&a, &b])?.swap_remove(0)),
            (a, b) => a.or(b),
        };
        Ok(())
    }

    /// Adds a gradient that the rule did not write into the slot itself, and counts the contribution.
    fn deliver_param(
        &self,
        emitter: &Emitter<'_, '_>,
        ready: &mut PendingBuckets<'_, '_, '_>,
        id: ParamId,
        gradient: Option<Tensor>,
    ) -> Result<(), OpError> {
        if emitter.begin(id) {
            // The product was not computed: nothing depends on its result in the end.
            self.zero(std::iter::once(emitter.grads.slot(id)))?;
        }
        if let Some(gradient) = gradient {
            ready.add(id, emitter.slot(id)?, gradient)?;
        }
        ready.contributed(id)
    }
}
