//! A frozen step: the recorded program executed again without the code that recorded it.
//!
//! Records run in their order with the kernels they were recorded with. Values live in numbered slots and are dropped after
//! their last use. Parameters, gradients, moments and buffers are bound to the storage they had; inputs and random keys
//! are set at every run. Records that cannot be captured in a graph are marked eager and run between graphs.
//!
//! **Invariant:** a plan computes what the recorded step computed, bit for bit. A program with an undeclared input
//! is refused, since a replay would silently reuse the recorded values.

use super::cx::Cx;
use super::no_grad::NoGrad;
use super::program::{Program, Rec};
use crate::backend::{Outs, duplicate};
use crate::error::{OpError, OpErrorKind};
use crate::kernel::{Launcher, keep_single_threaded};
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
    #[error("the step was not recorded to be frozen")]
    NotKept,
    #[error(
        "an input of shape {shape:?} was entered during the step\nhint: declare it as an input of the step, or cx.constant() if it never changes"
    )]
    Input { shape: Vec<i64> },
    #[error("{op} was recorded with the kernel {kernel}, which its row does not have")]
    Kernel { op: &'static str, kernel: &'static str },
    #[error("the random keys could not be made: {0}")]
    Keys(String),
}

/// One executed record of a run, as an observer sees it.
pub struct ExecutedRecord<'a> {
    /// Position of the record in the program.
    pub at: usize,
    pub rec: &'a Rec,
    pub ins: &'a [&'a Raw],
    pub outs: &'a [Raw],
}

/// Callback for every record of a run. An error ends the run.
pub type Observer<'a> = &'a mut dyn FnMut(&ExecutedRecord<'_>) -> Result<(), OpErrorKind>;

/// One record, ready to run.
struct Step {
    launch: fn(&Op, &Launch<'_>) -> Launched,
    /// The plain reference, which runs when `launch` fails; `None` where `launch` is the reference.
    plain: Option<fn(&Op, &Launch<'_>) -> Launched>,
    /// Values that no later record reads.
    last_use: SmallVec<[u32; 4]>,
    /// Whether the record cannot be captured in a graph.
    eager: bool,
}

/// A range of records that a captured step executes as one unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PlanPiece {
    /// Records that are captured in one graph.
    Graph(Range<usize>),
    /// Collectives, which run one by one.
    Collectives(Range<usize>),
    /// A record that cannot be captured.
    Eager(usize),
}

/// Most eager records of a captured step: with more of them, graphs gain nothing.
const EAGER_MAX: usize = 64;

pub struct Plan {
    program: Program,
    steps: Vec<Step>,
    slots: Vec<Option<Raw>>,
    inputs: Vec<Val>,
    outputs: Vec<Val>,
    /// Random keys, int64 (keys, 4). Each row is bound to the slot of its key.
    keys: Option<Raw>,
    hash: String,
    /// Results of the eager records in the last run, by record.
    kept: BTreeMap<usize, Outs>,
    /// The first record whose recorded kernel could not be launched.
    failed_launch: Cell<Option<usize>>,
}

impl Plan {
    /// Freezes what `cx` recorded, whose program has hash `hash`. `inputs` were entered with [`Cx::input`] and are set at every run, in
    /// this order; `outputs` are the values that a run returns.
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
        let failed_launch = Cell::new(None);
        Ok(Self { program, steps, slots, inputs: inputs.to_vec(), outputs, keys, hash, kept, failed_launch })
    }

    pub fn hash(&self) -> &str {
        &self.hash
    }

    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Runs the step with these inputs as optimizer step `step`; `observer` sees every record.
    ///
    /// # Errors
    /// Errors of a kernel or a collective, with the scope in the model. An error in a record before the optimizer leaves the
    /// weights unchanged.
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
            if self.steps[at].eager {
                self.kept.insert(at, outs.iter().map(Raw::shallow_clone).collect());
            }
            self.put(at, outs);
            self.drop_dead_values(at);
        }
        Ok(())
    }

    fn put(&mut self, at: usize, outs: Outs) {
        let first = self.program.recs()[at].first_out.index();
        for (i, raw) in outs.into_iter().enumerate() {
            self.slots[first + i] = Some(raw);
        }
    }

    /// Allocates a tensor for each result of the eager record `at`, filled with its results of the last run, instead of running it.
    pub(super) fn reserve_outputs(&mut self, at: usize) -> Result<Vec<Raw>, OpError> {
        let kept = self.kept.remove(&at).ok_or_else(|| self.fail(at, OpErrorKind::Lost))?;
        // A result may be a view of an operand.
        let places = kept.iter().map(duplicate).collect::<Result<Vec<_>, _>>();
        let places = places.map_err(|error| self.fail(at, error.into()))?;
        self.put(at, places.iter().map(Raw::shallow_clone).collect());
        self.drop_dead_values(at);
        Ok(places)
    }

    /// Runs the eager record `at` and copies its results into `places`.
    pub(super) fn run_eager(&self, at: usize, ins: &[Raw], places: &mut [Raw]) -> Result<(), OpErrorKind> {
        let ins: SmallVec<[&Raw; 8]> = ins.iter().collect();
        let outs = self.launch(at, &self.program.recs()[at].op, &Launch { ins: &ins })?;
        for (place, made) in places.iter_mut().zip(&outs) {
            place.f_copy_(made)?;
        }
        Ok(())
    }

    /// Drops the values that no record after `at` reads.
    pub(super) fn drop_dead_values(&mut self, at: usize) {
        for dead in &self.steps[at].last_use {
            self.slots[*dead as usize] = None;
        }
    }

    /// Drops everything a run made.
    pub(super) fn clear(&mut self) {
        for rec in self.program.recs() {
            rec.outs().for_each(|val| self.slots[val.index()] = None);
        }
    }

    /// Returns the current operands of record `at`.
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
            watch(&ExecutedRecord { at, rec, ins: &ins, outs: &outs })?;
        }
        Ok(outs)
    }

    /// Launches the recorded kernel, or the plain reference where the kernel fails: the ranks are in the middle of a step.
    fn launch(&self, at: usize, op: &Op, l: &Launch<'_>) -> Launched {
        let step = &self.steps[at];
        let _alone = keep_single_threaded(op, l);
        let error = match (step.launch)(op, l) {
            // Lack of memory is no fault of the kernel: the step is repeated in smaller parts.
            Err(error) if !error.is_out_of_memory() => error,
            made => return made,
        };
        self.failed_launch.set(self.failed_launch.get().or(Some(at)));
        let Some(plain) = step.plain else { return Err(error) };
        tracing::warn!(op = op.name(), %error, "a recorded kernel could not be launched");
        plain(op, l)
    }

    /// Whether a recorded kernel could not be launched. The step must then be recorded anew, or captured without that record.
    pub(super) fn launch_failed(&self) -> bool {
        self.failed_launch.get().is_some()
    }

    /// Marks the record that failed in a capture, and all like it, as eager, and returns its operation and scope. Another run must
    /// precede the next capture. Returns `None` where no record is known to be at fault, or too many would be eager.
    pub(super) fn exclude_from_capture(&mut self) -> Option<String> {
        let at = self.failed_launch.take().filter(|at| !self.steps[*at].eager)?;
        let recs = self.program.recs();
        let alike = |other: &usize| recs[*other].op == recs[at].op && recs[*other].kernel == recs[at].kernel;
        let alike: Vec<usize> = (0..recs.len()).filter(alike).collect();
        let before = self.steps.iter().filter(|step| step.eager).count();
        // Allocations and releases must be part of the graphs.
        if matches!(recs[at].op, Op::Allocate(_) | Op::Release(_)) || before + alike.len() > EAGER_MAX {
            return None;
        }
        alike.into_iter().for_each(|other| self.steps[other].eager = true);
        Some(format!("{} at {}", recs[at].op.name(), self.program.place(recs[at].scope)))
    }

    pub(super) fn take_outputs(&mut self) -> Result<Vec<Raw>, OpError> {
        let taken = self.outputs.iter().map(|val| self.slots[val.index()].as_ref().map(Raw::shallow_clone));
        let taken: Option<Vec<Raw>> = taken.collect();
        taken.ok_or_else(|| self.fail(0, OpErrorKind::Lost))
    }

    /// Divides the program into the units of a captured step, in order. With `inside`, graphs contain the collectives, too.
    pub(super) fn pieces(&self, inside: bool) -> Vec<PlanPiece> {
        let mut pieces: Vec<PlanPiece> = Vec::new();
        for (at, (rec, step)) in self.program.recs().iter().zip(&self.steps).enumerate() {
            let collective = rec.op.is_collective() && !inside;
            match pieces.last_mut() {
                _ if step.eager => pieces.push(PlanPiece::Eager(at)),
                Some(PlanPiece::Collectives(range)) if collective => range.end = at + 1,
                Some(PlanPiece::Graph(range)) if !collective => range.end = at + 1,
                _ if collective => pieces.push(PlanPiece::Collectives(at..at + 1)),
                _ => pieces.push(PlanPiece::Graph(at..at + 1)),
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

/// Stacks all random keys into one tensor and binds each key's slot to its row.
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

/// Marks the values on the host that may change from step to step, in a step on a device.
fn on_host(program: &Program) -> Vec<bool> {
    let vals = (0..program.values()).map(|at| program.val(Val(at as u32)));
    let on_device = vals.clone().any(|val| val.meta.device.is_cuda());
    vals.map(|val| on_device && val.meta.device == Device::Cpu && val.role != Role::Const).collect()
}

/// Looks up each record's kernel and the values that die after it.
fn steps(program: &Program, outputs: &[Val], launcher: &dyn Launcher) -> Result<Vec<Step>, Unplannable> {
    let mut last = vec![None; program.values()];
    for (at, rec) in program.recs().iter().enumerate() {
        // A result that no record reads is dropped where it is made.
        rec.outs().for_each(|val| last[val.index()] = Some(at));
        rec.ins.iter().for_each(|val| last[val.index()] = Some(at));
    }
    let on_host = on_host(program);
    let mut steps = Vec::with_capacity(program.recs().len());
    for rec in program.recs() {
        let eager = rec.ins.iter().copied().chain(rec.outs()).any(|val| on_host[val.index()]);
        let row = rec.op.row();
        let (launch, plain) = if rec.kernel == PLAIN {
            (row.launch, None)
        } else {
            let kernel = launcher.kernel(&rec.op, rec.kernel);
            let kernel = kernel.ok_or(Unplannable::Kernel { op: row.name, kernel: rec.kernel })?;
            (kernel.launch, Some(row.launch))
        };
        steps.push(Step { launch, plain, last_use: SmallVec::new(), eager });
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
