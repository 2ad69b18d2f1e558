//! A frozen step: the recorded program executed again without the code that recorded it.
//!
//! Records run in their order with the kernels they were recorded with; values live in numbered slots and are let go after
//! their last use. Parameters, gradients, moments and buffers are bound to the storage they had; inputs and random keys
//! are given anew at every run. Some records no graph can hold: they are set apart, and run between graphs.
//!
//! **Invariant:** a plan computes what the recorded step computed, bit for bit. A program with an input that nobody declared
//! is refused, since its values would silently stay those of the recording.

use super::call::NoGrad;
use super::cx::Cx;
use super::program::{Program, Rec};
use crate::backend::{Outs, duplicate};
use crate::error::{OpError, OpErrorKind};
use crate::kernel::{Launcher, alone};
use crate::op::Op;
use crate::op::collective::{self, Collectives};
use crate::op::row::{Launch, Launched, PLAIN};
use crate::op::value::{Role, Tensor, Val};
use smallvec::SmallVec;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;
use tch::{Device, Tensor as Raw};

/// Why a recorded step cannot be frozen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unplannable {
    /// The context was not told to keep its leaves.
    #[error("the step was not recorded to be frozen")]
    NotKept,
    /// A tensor was entered during the step.
    #[error(
        "an input of shape {shape:?} was entered during the step\nhint: declare it as an input of the step, or cx.constant() if it never changes"
    )]
    Input { shape: Vec<i64> },
    /// A kernel that no longer exists.
    #[error("{op} was recorded with the kernel {kernel}, which its row does not have")]
    Kernel {
        /// The operation.
        op: &'static str,
        kernel: &'static str,
    },
    /// libtorch refused to make the random keys.
    #[error("the random keys could not be made: {0}")]
    Keys(String),
}

/// One executed record of a run.
pub struct Seen<'a> {
    /// Its number.
    pub at: usize,
    pub rec: &'a Rec,
    /// Operands, after the run.
    pub ins: &'a [&'a Raw],
    /// Results.
    pub outs: &'a [Raw],
}

/// Watches a run. An error ends it.
pub type Observer<'a> = &'a mut dyn FnMut(&Seen<'_>) -> Result<(), OpErrorKind>;

/// One record, ready to run.
struct Step {
    launch: fn(&Op, &Launch<'_>) -> Launched,
    /// What runs when that cannot be launched.
    plain: Option<fn(&Op, &Launch<'_>) -> Launched>,
    /// Values that nothing reads after it.
    last_use: SmallVec<[u32; 4]>,
    /// No graph can hold it.
    apart: bool,
}

/// What a captured step does at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    /// A graph of these records.
    Graph(Range<usize>),
    /// Collectives, each by itself.
    Together(Range<usize>),
    /// A record that no graph can hold.
    Apart(usize),
}

/// More records than this set apart, and graphs gain nothing.
const APART_MAX: usize = 64;

/// A frozen step.
pub struct Plan {
    program: Program,
    steps: Vec<Step>,
    slots: Vec<Option<Raw>>,
    inputs: Vec<Val>,
    outputs: Vec<Val>,
    /// (keys, 4) int64: the rows are bound to the keys' slots.
    keys: Option<Raw>,
    hash: String,
    /// What the records that are set apart made in the last run.
    kept: BTreeMap<usize, Outs>,
    /// The first record that could not be launched as it was recorded.
    stopped: Cell<Option<usize>>,
}

impl Plan {
    /// Freezes what `cx` recorded, whose program has hash `hash`. `inputs` were entered with [`Cx::input`] and are given anew at every run, in this order;
    /// `outputs` are what a run returns.
    pub(super) fn freeze(cx: Cx<'_>, hash: String, inputs: &[Val], outputs: &[Tensor]) -> Result<Self, Unplannable> {
        let launcher = cx.launcher;
        let state = cx.state.into_inner();
        let bound = state.bound.ok_or(Unplannable::NotKept)?;
        let program = state.program;
        let mut slots: Vec<Option<Raw>> = (0..program.values()).map(|_| None).collect();
        for (val, raw) in bound {
            let stray = program.val(val).role == Role::Input && !inputs.contains(&val);
            if stray {
                return Err(Unplannable::Input { shape: program.val(val).meta.shape.to_vec() });
            }
            slots[val.index()] = Some(raw);
        }
        let keys = bind_keys(&state.keys, &mut slots).map_err(|error| Unplannable::Keys(error.to_string()))?;
        let outputs: Vec<Val> = outputs.iter().map(Tensor::val).collect();
        let steps = steps(&program, &outputs, launcher)?;
        let kept = BTreeMap::new();
        let stopped = Cell::new(None);
        Ok(Self { program, steps, slots, inputs: inputs.to_vec(), outputs, keys, hash, kept, stopped })
    }

    /// Hash of the program: that of the recorded step.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Runs the step with these inputs as optimizer step `step`; `observer` sees every record.
    ///
    /// # Errors
    /// What a kernel or a collective says, with the place in the model. An error in a record before the optimizer leaves the
    /// weights as they were.
    pub fn run(
        &mut self,
        inputs: &[Raw],
        step: u64,
        collectives: Option<&dyn Collectives>,
        observer: Option<Observer<'_>>,
    ) -> Result<Vec<Raw>, OpError> {
        let _no_grad = NoGrad::enter();
        self.bind(inputs, step)?;
        self.run_range(0..self.steps.len(), collectives, observer)?;
        self.take_outputs()
    }

    /// Puts inputs and step number in place.
    pub(super) fn bind(&mut self, inputs: &[Raw], step: u64) -> Result<(), OpError> {
        for (val, raw) in self.inputs.iter().zip(inputs) {
            self.slots[val.index()] = Some(raw.shallow_clone());
        }
        self.set_step(step)
    }

    pub(super) fn set_step(&mut self, step: u64) -> Result<(), OpError> {
        let Some(keys) = &self.keys else { return Ok(()) };
        let set = keys.f_select(1, 1).and_then(|mut column| column.f_fill_(step.cast_signed()));
        set.map(|_| ()).map_err(|error| self.fail(0, error.into()))
    }

    pub(super) fn run_range(
        &mut self,
        range: Range<usize>,
        collectives: Option<&dyn Collectives>,
        mut observer: Option<Observer<'_>>,
    ) -> Result<(), OpError> {
        for at in range {
            let outs = self.run_one(at, collectives, &mut observer).map_err(|kind| self.fail(at, kind))?;
            if self.steps[at].apart {
                self.kept.insert(at, outs.iter().map(Raw::shallow_clone).collect());
            }
            self.put(at, outs);
            self.let_go(at);
        }
        Ok(())
    }

    /// Gives the results of record `at` to those that read them.
    fn put(&mut self, at: usize, outs: Outs) {
        let first = self.program.recs()[at].first_out.index();
        for (i, raw) in outs.into_iter().enumerate() {
            self.slots[first + i] = Some(raw);
        }
    }

    /// In place of running record `at`, which is set apart: gives a place to each result, with what it made in the last run.
    pub(super) fn keep_place(&mut self, at: usize) -> Result<Vec<Raw>, OpError> {
        let kept = self.kept.remove(&at).ok_or_else(|| self.fail(at, OpErrorKind::Lost))?;
        // Some may lie in an operand's memory.
        let places = kept.iter().map(duplicate).collect::<Result<Vec<_>, _>>();
        let places = places.map_err(|error| self.fail(at, error.into()))?;
        self.put(at, places.iter().map(Raw::shallow_clone).collect());
        self.let_go(at);
        Ok(places)
    }

    /// Runs record `at`, which is set apart, into `places`.
    pub(super) fn run_apart(&self, at: usize, ins: &[Raw], places: &mut [Raw]) -> Result<(), OpErrorKind> {
        let ins: SmallVec<[&Raw; 8]> = ins.iter().collect();
        let outs = self.launch(at, &self.program.recs()[at].op, &Launch { ins: &ins })?;
        for (place, made) in places.iter_mut().zip(&outs) {
            place.f_copy_(made)?;
        }
        Ok(())
    }

    /// Lets go of the values that nothing reads after record `at`.
    pub(super) fn let_go(&mut self, at: usize) {
        for dead in &self.steps[at].last_use {
            self.slots[*dead as usize] = None;
        }
    }

    /// Lets go of everything a run made.
    pub(super) fn clear(&mut self) {
        for rec in self.program.recs() {
            rec.outs().for_each(|val| self.slots[val.index()] = None);
        }
    }

    /// Operands of record `at`, as they are.
    pub(super) fn operands(&self, at: usize) -> Result<Vec<Raw>, OpError> {
        let ins = self.program.recs()[at].ins.iter().map(|val| self.slots[val.index()].as_ref());
        let ins: Option<Vec<Raw>> = ins.map(|raw| raw.map(Raw::shallow_clone)).collect();
        ins.ok_or_else(|| self.fail(at, OpErrorKind::Lost))
    }

    fn run_one(
        &self,
        at: usize,
        collectives: Option<&dyn Collectives>,
        observer: &mut Option<Observer<'_>>,
    ) -> Result<Outs, OpErrorKind> {
        let rec = &self.program.recs()[at];
        let mut ins: SmallVec<[&Raw; 8]> = SmallVec::with_capacity(rec.ins.len());
        for val in &rec.ins {
            ins.push(self.slots[val.index()].as_ref().ok_or(OpErrorKind::Lost)?);
        }
        let launch = Launch { ins: &ins };
        let outs = if rec.op.is_collective() {
            collective::run(&rec.op, &launch, collectives).map(|()| Outs::new())?
        } else {
            self.launch(at, &rec.op, &launch)?
        };
        if let Some(watch) = observer {
            watch(&Seen { at, rec, ins: &ins, outs: &outs })?;
        }
        Ok(outs)
    }

    /// The recorded kernel, or the plain reference where it cannot be launched: the ranks are in the middle of a step.
    fn launch(&self, at: usize, op: &Op, l: &Launch<'_>) -> Launched {
        let step = &self.steps[at];
        let _alone = alone(op, l);
        let error = match (step.launch)(op, l) {
            // That says nothing of the kernel: the step is done again in smaller parts.
            Err(error) if !error.is_out_of_memory() => error,
            made => return made,
        };
        self.stopped.set(self.stopped.get().or(Some(at)));
        let Some(plain) = step.plain else { return Err(error) };
        tracing::warn!(op = op.name(), %error, "a recorded kernel could not be launched");
        plain(op, l)
    }

    /// Whether a kernel could not be launched: the step is to be recorded anew, or to be captured without it.
    pub(super) fn has_stopped(&self) -> bool {
        self.stopped.get().is_some()
    }

    /// Sets what could not be launched in a capture apart, wherever it is in the step: the operation and its place. The next run
    /// makes ready for another capture. None where nothing is known to be at fault, or too much.
    pub(super) fn set_apart(&mut self) -> Option<String> {
        let at = self.stopped.take().filter(|at| !self.steps[*at].apart)?;
        let recs = self.program.recs();
        let alike = |other: &usize| recs[*other].op == recs[at].op && recs[*other].kernel == recs[at].kernel;
        let alike: Vec<usize> = (0..recs.len()).filter(alike).collect();
        let before = self.steps.iter().filter(|step| step.apart).count();
        // Memory that comes and goes is the graphs' own.
        if matches!(recs[at].op, Op::Allocate | Op::Release) || before + alike.len() > APART_MAX {
            return None;
        }
        alike.into_iter().for_each(|other| self.steps[other].apart = true);
        Some(format!("{} at {}", recs[at].op.name(), self.program.place(recs[at].scope)))
    }

    pub(super) fn take_outputs(&mut self) -> Result<Vec<Raw>, OpError> {
        let taken = self.outputs.iter().map(|val| self.slots[val.index()].as_ref().map(Raw::shallow_clone));
        let taken: Option<Vec<Raw>> = taken.collect();
        taken.ok_or_else(|| self.fail(0, OpErrorKind::Lost))
    }

    /// What a captured step does, in order; its graphs hold the collectives, too, if they are `inside`.
    pub(super) fn pieces(&self, inside: bool) -> Vec<Piece> {
        let mut pieces: Vec<Piece> = Vec::new();
        for (at, (rec, step)) in self.program.recs().iter().zip(&self.steps).enumerate() {
            let together = rec.op.is_collective() && !inside;
            match pieces.last_mut() {
                _ if step.apart => pieces.push(Piece::Apart(at)),
                Some(Piece::Together(range)) if together => range.end = at + 1,
                Some(Piece::Graph(range)) if !together => range.end = at + 1,
                _ if together => pieces.push(Piece::Together(at..at + 1)),
                _ => pieces.push(Piece::Graph(at..at + 1)),
            }
        }
        pieces
    }

    fn fail(&self, at: usize, kind: OpErrorKind) -> OpError {
        let rec = self.program.recs().get(at);
        let (op, place) = match rec {
            Some(rec) => (rec.op.name(), self.program.place(rec.scope)),
            None => ("plan", "top".to_owned()),
        };
        OpError { op, place, kind: Box::new(kind) }
    }
}

/// One tensor for all random keys; each key's slot is a row of it.
fn bind_keys(keys: &[Val], slots: &mut [Option<Raw>]) -> Result<Option<Raw>, tch::TchError> {
    let raws = keys.iter().filter_map(|val| slots[val.index()].as_ref()).collect::<Vec<_>>();
    if raws.is_empty() {
        return Ok(None);
    }
    let all = tch::no_grad(|| Raw::f_stack(&raws, 0))?;
    for (i, val) in keys.iter().enumerate() {
        slots[val.index()] = Some(all.f_select(0, i as i64)?);
    }
    Ok(Some(all))
}

/// Values on the host that may be others at the next step, in a step on a device.
fn on_host(program: &Program) -> Vec<bool> {
    let vals = (0..program.values()).map(|at| program.val(Val(at as u32)));
    let on_device = vals.clone().any(|val| val.meta.device.is_cuda());
    vals.map(|val| on_device && val.meta.device == Device::Cpu && val.role != Role::Const).collect()
}

/// Launches and last uses.
fn steps(program: &Program, outputs: &[Val], launcher: &dyn Launcher) -> Result<Vec<Step>, Unplannable> {
    let mut last = vec![None; program.values()];
    for (at, rec) in program.recs().iter().enumerate() {
        // A result that nothing reads dies where it is made.
        rec.outs().for_each(|val| last[val.index()] = Some(at));
        rec.ins.iter().for_each(|val| last[val.index()] = Some(at));
    }
    let on_host = on_host(program);
    let mut steps = Vec::with_capacity(program.recs().len());
    for rec in program.recs() {
        let apart = rec.ins.iter().copied().chain(rec.outs()).any(|val| on_host[val.index()]);
        let row = rec.op.row();
        let (launch, plain) = if rec.kernel == PLAIN {
            (row.launch, None)
        } else {
            let kernel = launcher.kernel(&rec.op, rec.kernel);
            let kernel = kernel.ok_or(Unplannable::Kernel { op: row.name, kernel: rec.kernel })?;
            (kernel.launch, Some(row.launch))
        };
        steps.push(Step { launch, plain, last_use: SmallVec::new(), apart });
    }
    for (val, at) in last.into_iter().enumerate() {
        let value = Val(val as u32);
        if let Some(at) = at
            && program.val(value).role == Role::Temp
            && !outputs.contains(&value)
        {
            steps[at].last_use.push(val as u32);
        }
    }
    Ok(steps)
}
