//! The context of one step: tape, mode, random key and scope in the model.
//!
//! **Invariant:** layers get a context and tensors only. They have no access to ranks, paths, environment, clock or log.

use super::cast_cache::{CastCache, Casting};
use super::leaf::Leaves;
use super::no_grad::NoGrad;
use super::observe::Observe;
use super::program::{Phase, Program};
use super::scope::{ScopeGuard, ScopeId};
use super::sharded_buffer::ResidentBuffers;
use super::tape_node::{OpenSegment, TapeNode};
use crate::error::{OpError, OpErrorKind};
use crate::kernel::{FirstFit, Launcher};
use crate::op::collective::Collectives;
use crate::op::value::{BucketId, Meta, ParamId, Role, Tensor, Val};
use std::cell::{Cell, RefCell};
use tch::Device;

/// Number of records to reserve capacity for: about as many as a step of the default model has.
const RECORDS_EXPECTED: usize = 2048;

#[derive(Default)]
pub(super) struct CxState {
    pub(super) program: Program,
    pub(super) nodes: Vec<TapeNode>,
    /// Parameters touched so far, by id.
    pub(super) params: Vec<Option<Tensor>>,
    /// The random key, once an operation has drawn random numbers.
    random: Option<Tensor>,
    pub(super) made: CastCache,
    /// The part of the forward pass that is being recorded for recomputation.
    pub(super) open: Option<OpenSegment>,
    pub(super) keys: Vec<Val>,
    /// Tensor of every leaf when it was entered, where [`Cx::keep_leaves`] asked for them.
    pub(super) bound: Option<Vec<(Val, tch::Tensor)>>,
}

/// The context of one step. Belongs to one thread.
pub struct Cx<'p> {
    pub(super) state: RefCell<CxState>,
    pub(super) leaves: &'p dyn Leaves,
    pub(super) launcher: &'p dyn Launcher,
    pub(super) collectives: Option<&'p dyn Collectives>,
    pub(super) observer: Option<&'p dyn Observe>,
    pub(super) phase: Cell<Phase>,
    pub(super) scope: Cell<ScopeId>,
    pub(super) taping: Cell<bool>,
    pub(super) casting: Casting,
    pub(super) loss_scale: RefCell<Option<tch::Tensor>>,
    pub(super) recompute: Cell<bool>,
    pub(super) resident: RefCell<ResidentBuffers>,
    /// Whether the gradients hold values of the last step, which are to be cleared.
    pub(super) stale: Cell<bool>,
    /// The last bucket of the reverse walk, while its hook runs.
    pub(super) ending: Cell<Option<BucketId>>,
    /// Number of buckets whose sums were begun.
    pub(super) summed: Cell<usize>,
    pub(super) last: Cell<Option<BucketId>>,
    key: Cell<RandomKey>,
    site: Cell<u32>,
    training: bool,
    _no_grad: NoGrad,
}

/// Inputs of a step's random numbers.
#[derive(Debug, Clone, Copy, Default)]
struct RandomKey {
    seed: u64,
    step: u64,
    first_row: u64,
    rows: u64,
}

static FIRST_FIT: FirstFit = FirstFit;

impl<'p> Cx<'p> {
    /// Returns a context that tapes and applies dropout. `seed` and `step` key the random generator.
    pub fn train(params: &'p dyn Leaves, seed: u64, step: u64) -> Self {
        Self::new(params, RandomKey { seed, step, ..RandomKey::default() }, true)
    }

    /// Returns a context without tape and dropout.
    pub fn eval(params: &'p dyn Leaves) -> Self {
        Self::new(params, RandomKey::default(), false)
    }

    fn new(leaves: &'p dyn Leaves, key: RandomKey, training: bool) -> Self {
        let records = if training { RECORDS_EXPECTED } else { RECORDS_EXPECTED / 4 };
        let params = vec![None; leaves.count()];
        Self {
            state: RefCell::new(CxState { program: Program::with_capacity(records), params, ..CxState::default() }),
            leaves,
            launcher: &FIRST_FIT,
            collectives: None,
            observer: None,
            phase: Cell::new(Phase::Forward),
            scope: Cell::new(ScopeId::default()),
            taping: Cell::new(training),
            casting: Casting::default(),
            loss_scale: RefCell::default(),
            recompute: Cell::new(false),
            resident: RefCell::default(),
            stale: Cell::new(false),
            ending: Cell::new(None),
            summed: Cell::new(0),
            last: Cell::new(None),
            key: Cell::new(key),
            site: Cell::new(0),
            training,
            _no_grad: NoGrad::enter(),
        }
    }

    pub fn set_launcher(&mut self, launcher: &'p dyn Launcher) {
        self.launcher = launcher;
    }

    /// Starts the backward pass from `scale` (f32, 0 axes, on the device) instead of 1: all gradients are multiplied by it.
    pub fn set_loss_scale(&self, scale: &tch::Tensor) {
        self.loss_scale.replace(Some(scale.shallow_clone()));
    }

    pub fn set_observer(&mut self, observer: &'p dyn Observe) {
        self.observer = Some(observer);
    }

    /// Sets the ranks that [`Cx::all_reduce`] sums over.
    pub fn set_collectives(&mut self, collectives: &'p dyn Collectives) {
        self.collectives = Some(collectives);
    }

    /// Saves memory: every [`Cx::part`] of the forward pass is recomputed in the backward pass.
    pub fn set_recompute(&self, on: bool) {
        self.recompute.set(on);
    }

    /// Keeps the tensor of every leaf, so that the step can be frozen into a [`super::Plan`], or exported.
    pub fn keep_leaves(&mut self) {
        self.state.borrow_mut().bound = Some(Vec::new());
    }

    /// Returns the leaves that were kept, in the order in which they were entered.
    pub fn kept_leaves(&self) -> Vec<(Val, tch::Tensor)> {
        let state = self.state.borrow();
        state.bound.iter().flatten().map(|(val, raw)| (*val, raw.shallow_clone())).collect()
    }

    /// Begins a micro-batch with the rows of the global batch that this rank holds, so that dropout masks depend neither on the
    /// world size nor on the accumulation.
    pub fn set_rows(&self, first_row: u64, rows: u64) {
        self.key.set(RandomKey { first_row, rows, ..self.key.get() });
        self.site.set(0);
        self.state.borrow_mut().random = None;
    }

    /// Makes the next [`Cx::backward`] clear the gradients first. A large weight whose gradient is a single product is not cleared: its
    /// gradient is written instead of added to.
    pub fn clear_gradients(&self) {
        self.stale.set(true);
    }

    /// Enters a tensor of the batch.
    pub fn input(&self, raw: tch::Tensor) -> Tensor {
        self.leaf(raw, Role::Input, false)
    }

    /// Enters a tensor that is the same in every step.
    pub fn constant(&self, raw: tch::Tensor) -> Tensor {
        self.leaf(raw, Role::Const, false)
    }

    /// Returns the key of the random generator: int64 (seed, step, first row of this rank, rows), on the device of the parameters.
    pub(crate) fn random_key(&self) -> Result<Tensor, OpError> {
        if let Some(known) = &self.state.borrow().random {
            return Ok(known.clone());
        }
        let key = self.key.get();
        let numbers = [key.seed, key.step, key.first_row, key.rows].map(u64::cast_signed);
        let raw = tch::Tensor::f_from_slice(&numbers).and_then(|raw| raw.f_to_device(self.device()));
        let made = self.leaf(raw.map_err(|kind| self.fail("random key", kind))?, Role::RandomKey, false);
        let mut state = self.state.borrow_mut();
        state.keys.push(made.val());
        state.random = Some(made.clone());
        Ok(made)
    }

    /// Enters optimizer state: moments, counters, rates.
    pub fn opt_state(&self, raw: tch::Tensor) -> Tensor {
        self.leaf(raw, Role::OptState, false)
    }

    /// Enters an input that requires a gradient, which [`Cx::backward_to`] returns. Used by tests and to embed a graph.
    pub fn variable(&self, raw: tch::Tensor) -> Tensor {
        self.leaf(raw, Role::Input, self.taping.get())
    }

    /// Returns the master tensor of a parameter, as the same value at every call.
    pub fn param(&self, id: ParamId) -> Tensor {
        if let Some(known) = &self.state.borrow().params[id.index()] {
            return known.clone();
        }
        let tensor = self.leaf(self.leaves.leaf(id).shallow_clone(), Role::Param(id), self.taping.get());
        self.state.borrow_mut().params[id.index()] = Some(tensor.clone());
        tensor
    }

    pub(super) fn leaf(&self, raw: tch::Tensor, role: Role, requires_grad: bool) -> Tensor {
        let meta = Meta::of(&raw);
        let mut state = self.state.borrow_mut();
        let val = state.program.value(meta.clone(), role, requires_grad);
        if let Some(array) = self.leaves.buffer_of(role) {
            self.resident.borrow_mut().note(val, array);
        }
        if let Some(bound) = &mut state.bound {
            bound.push((val, raw.shallow_clone()));
        }
        Tensor::leaf(raw, val, meta, requires_grad)
    }

    /// Enters a named scope until the guard is dropped.
    pub fn scope(&self, name: &str) -> ScopeGuard<'_> {
        let outer = self.scope.get();
        self.scope.set(self.state.borrow_mut().program.scopes.enter(outer, name));
        ScopeGuard { current: &self.scope, outer }
    }

    pub fn is_training(&self) -> bool {
        self.training
    }

    pub fn device(&self) -> Device {
        self.leaves.device()
    }

    /// Returns a fresh number for an operation that draws random numbers. Steps that call the same layers get the same numbers.
    pub(crate) fn next_site(&self) -> u32 {
        let site = self.site.get();
        self.site.set(site + 1);
        site
    }

    /// Runs `f` with its records marked as parameter updates.
    pub fn optim<R>(&self, f: impl FnOnce(&Self) -> R) -> R {
        self.in_phase(Phase::Optim, f)
    }

    pub(super) fn in_phase<R>(&self, phase: Phase, f: impl FnOnce(&Self) -> R) -> R {
        let outer = self.phase.replace(phase);
        let taping = self.taping.replace(false);
        let result = f(self);
        self.taping.set(taping);
        self.phase.set(outer);
        result
    }

    pub fn with_program<R>(&self, f: impl FnOnce(&Program) -> R) -> R {
        f(&self.state.borrow().program)
    }

    /// Returns the hexadecimal hash of the program recorded so far.
    pub fn program_hash(&self) -> String {
        self.with_program(Program::hash)
    }

    /// Returns an error at the current scope.
    pub fn fail(&self, op: &'static str, kind: impl Into<OpErrorKind>) -> OpError {
        let place = self.with_program(|p| p.place(self.scope.get()));
        OpError { op, place, kind: Box::new(kind.into()) }
    }
}
