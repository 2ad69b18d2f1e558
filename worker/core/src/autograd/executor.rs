//! Executes steps: recorded by their code, replayed from the recording, or launched as captured graphs.
//!
//! The first steps run the code and record. When two steps in a row record the same program, the plan replaces the code; on a CUDA
//! device the plan is captured. Graphs that are slower than the plan are given up. Inputs of another shape get a plan of their own.
//!
//! **Invariant:** all three modes compute the same bits with the same kernels; only the time differs.

use super::cx::Cx;
use super::graph::Captured;
use super::leaf::Leaves;
use super::observe::Observe;
use super::plan::{ExecutedRecord, Plan};
use super::program::Phase;
use super::trial::Trial;
use crate::error::OpError;
use crate::kernel::Launcher;
use crate::op::collective::Collectives;
use crate::op::value::{Meta, Tensor, Val};
use std::collections::BTreeSet;
use tch::Tensor as Raw;

/// Most plans that are kept, one per shape of the inputs.
const PLANS_MAX: usize = 4;
/// Runs of a plan before it is captured. By then libraries have made their workspaces on this stream.
const RUNS_BEFORE_CAPTURE: u32 = 3;
/// Equal recordings in a row before the plan replaces the code.
const RECORDINGS: u32 = 2;

/// How a step is executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    Tape,
    Plan,
    /// The captured graphs of the plan are launched.
    Graph,
}

impl Mode {
    /// Name in the configuration and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tape => "tape",
            Self::Plan => "plan",
            Self::Graph => "graph",
        }
    }
}

/// Everything a step needs besides its code.
pub struct Request<'a> {
    pub leaves: &'a dyn Leaves,
    pub seed: u64,
    pub step: u64,
    /// Chooses the kernels while recording. A plan keeps those it was recorded with.
    pub launcher: &'a dyn Launcher,
    /// The other ranks, if any.
    pub collectives: Option<&'a dyn Collectives>,
    /// Tensors that change from step to step, in a fixed order: data, rates, flags.
    pub inputs: Vec<Raw>,
    /// Called with the phase of each record of a replay.
    pub watch: Option<&'a mut dyn FnMut(Phase)>,
    /// Observer of every operation. With one the step always runs by its code.
    pub observer: Option<&'a dyn Observe>,
}

pub struct StepOutput {
    /// Values that the code returned, or those of the replay.
    pub outputs: Vec<Raw>,
    pub mode: Mode,
}

/// Replay state of the steps whose inputs have one shape.
#[derive(Default)]
struct ShapeState {
    metas: Vec<Meta>,
    hash: String,
    times: u32,
    ready: ReplayState,
    /// Why there will be no plan.
    no_plan: Option<String>,
    /// Why there will be no graph; the plan runs all the same.
    no_graph: Option<String>,
    /// Operations that run between graphs because they cannot be captured.
    eager: Option<String>,
    trial: Trial,
}

#[derive(Default)]
enum ReplayState {
    /// No plan exists: the code runs.
    #[default]
    No,
    /// The plan runs; the number counts its runs.
    Plan(Box<Plan>, u32),
    Graph(Box<Captured>),
}

impl ShapeState {
    /// Why the step is not replayed or not captured, once that is known.
    fn fallback_reason(&self) -> Option<&String> {
        self.no_plan.as_ref().or(self.no_graph.as_ref()).or(self.eager.as_ref())
    }

    /// Captures a plan that has run often enough.
    fn capture_when_due(&mut self, inputs: &[Raw], inside: Option<&dyn Collectives>) {
        let due = matches!(&self.ready, ReplayState::Plan(_, runs) if *runs == RUNS_BEFORE_CAPTURE);
        if !due || self.no_graph.is_some() {
            return;
        }
        let ReplayState::Plan(plan, runs) = std::mem::take(&mut self.ready) else { return };
        self.ready = match Captured::new(*plan, inputs, inside) {
            Ok(captured) => {
                tracing::info!(graphs = captured.graphs(), "the step is captured");
                ReplayState::Graph(Box::new(captured))
            }
            Err((mut plan, reason)) => match plan.exclude_from_capture() {
                Some(what) => {
                    tracing::warn!(%reason, what, "cannot be captured; it runs between graphs");
                    let before = self.eager.take().map_or(String::new(), |before| format!("{before}; "));
                    self.eager =
                        Some(format!("{before}{what} runs between graphs, for it cannot be captured: {reason}"));
                    ReplayState::Plan(plan, runs - 1)
                }
                None => {
                    tracing::warn!(%reason, "the step cannot be captured; its record runs");
                    self.no_graph = Some(reason.to_string());
                    ReplayState::Plan(plan, runs)
                }
            },
        };
    }

    /// Drops the plan after a failed launch, so that the step is recorded again.
    fn restart_recording(&mut self) {
        self.ready = ReplayState::No;
        self.times = 0;
        self.trial = Trial::default();
    }

    fn drop_slower_graphs(&mut self) {
        let Some([record, graphs]) = self.trial.slower_graphs() else { return };
        let ReplayState::Graph(captured) = std::mem::take(&mut self.ready) else { return };
        self.no_graph =
            Some(format!("a step takes {graphs:.2} ms as graphs and {record:.2} by its record, which runs"));
        self.ready = ReplayState::Plan(captured.into_plan(), RUNS_BEFORE_CAPTURE);
    }
}

/// Replays a plan and calls `watch` with the phase of each record.
fn run(plan: &mut Plan, inputs: &[Raw], request: &mut Request<'_>) -> Result<Vec<Raw>, OpError> {
    let Some(watch) = request.watch.take() else {
        return plan.run(inputs, request.step, request.collectives, None);
    };
    let mut observer = |seen: &ExecutedRecord<'_>| {
        watch(seen.rec.phase);
        Ok(())
    };
    plan.run(inputs, request.step, request.collectives, Some(&mut observer))
}

/// Chooses the mode of each step and keeps the plans.
pub struct Executor {
    limit: Mode,
    capture_collectives: bool,
    known: Vec<ShapeState>,
    /// [`Launcher::generation`] when the known steps were recorded.
    generation: u64,
    reported: BTreeSet<String>,
}

impl Executor {
    /// Returns an executor that uses no mode beyond `limit`.
    pub fn new(limit: Mode) -> Self {
        Self { limit, capture_collectives: false, known: Vec::new(), generation: 0, reported: BTreeSet::new() }
    }

    /// Sets whether collectives are captured with the rest of the step, in one graph, instead of running between graphs. Only NCCL's
    /// can be captured.
    pub fn capture_collectives(&mut self, inside: bool) {
        self.capture_collectives = inside;
    }

    /// Whether collectives are part of the graphs.
    pub fn captures_collectives(&self) -> bool {
        self.capture_collectives
    }

    /// Drops every plan, which is necessary when precision or the parameters' storage changed.
    pub fn reset(&mut self) {
        self.known.clear();
    }

    /// Why steps are not replayed or not captured, once that is known.
    pub fn fallback_reason(&self) -> Option<&str> {
        self.known.iter().find_map(ShapeState::fallback_reason).map(String::as_str)
    }

    /// Returns a reason as [`Self::fallback_reason`] does, but each reason once only.
    pub fn new_fallback_reason(&mut self) -> Option<String> {
        let new = self
            .known
            .iter()
            .filter_map(ShapeState::fallback_reason)
            .find(|reason| !self.reported.contains(*reason))?
            .clone();
        self.reported.insert(new.clone());
        Some(new)
    }

    /// Returns the plan of the last step, if it was replayed.
    pub fn plan(&mut self) -> Option<&mut Plan> {
        match &mut self.known.last_mut()?.ready {
            ReplayState::No => None,
            ReplayState::Plan(plan, _) => Some(plan),
            ReplayState::Graph(captured) => Some(captured.plan()),
        }
    }

    /// Executes one step. `code` computes the outputs from the inputs; it is called unless a plan is ready.
    pub fn step<E: From<OpError>>(
        &mut self,
        mut request: Request<'_>,
        code: impl FnOnce(&Cx<'_>, &[Tensor]) -> Result<Vec<Tensor>, E>,
    ) -> Result<StepOutput, E> {
        let generation = request.launcher.generation();
        if std::mem::replace(&mut self.generation, generation) != generation {
            self.reset();
        }
        let inputs = std::mem::take(&mut request.inputs);
        let metas: Vec<Meta> = inputs.iter().map(Meta::of).collect();
        // The most recently used entry is the last of the list.
        if let Some(at) = self.known.iter().position(|known| known.metas == metas) {
            let known = self.known.remove(at);
            self.known.push(known);
        }
        if request.observer.is_some() {
            return self.record(&request, inputs, metas, code);
        }
        let captures = self.limit == Mode::Graph && metas.iter().any(|meta| meta.device.is_cuda());
        let inside = self.capture_collectives;
        if let Some(known) = self.known.last_mut().filter(|known| known.metas == metas) {
            if captures {
                known.capture_when_due(&inputs, request.collectives.filter(|_| inside));
            }
            match &mut known.ready {
                ReplayState::No => {}
                ReplayState::Plan(plan, runs) => {
                    *runs = runs.saturating_add(1);
                    let timed = captures && *runs <= RUNS_BEFORE_CAPTURE;
                    let mut run = || run(plan, &inputs, &mut request);
                    let outputs = if timed { known.trial.record(run) } else { run() }?;
                    if plan.launch_failed() {
                        known.restart_recording();
                    }
                    return Ok(StepOutput { outputs, mode: Mode::Plan });
                }
                ReplayState::Graph(captured) => {
                    let run = || captured.run(&inputs, request.step, request.collectives);
                    let outputs = known.trial.graphs(run)?;
                    if captured.plan().launch_failed() {
                        known.restart_recording();
                    }
                    known.drop_slower_graphs();
                    return Ok(StepOutput { outputs, mode: Mode::Graph });
                }
            }
        }
        self.record(&request, inputs, metas, code)
    }

    fn record<E: From<OpError>>(
        &mut self,
        request: &Request<'_>,
        inputs: Vec<Raw>,
        metas: Vec<Meta>,
        code: impl FnOnce(&Cx<'_>, &[Tensor]) -> Result<Vec<Tensor>, E>,
    ) -> Result<StepOutput, E> {
        let mut cx = Cx::train(request.leaves, request.seed, request.step);
        cx.set_launcher(request.launcher);
        if let Some(collectives) = request.collectives {
            cx.set_collectives(collectives);
        }
        if let Some(observer) = request.observer {
            cx.set_observer(observer);
        }
        let refused = self.known.iter().any(|known| known.metas == metas && known.no_plan.is_some());
        let learns = self.limit != Mode::Tape && request.observer.is_none() && !refused;
        if learns {
            cx.keep_leaves();
        }
        let inputs: Vec<Tensor> = inputs.into_iter().map(|raw| cx.input(raw)).collect();
        let outputs = code(&cx, &inputs)?;
        let raws = outputs.iter().map(|t| t.raw().shallow_clone()).collect();
        let declared: Vec<Val> = inputs.iter().map(Tensor::val).collect();
        match request.observer {
            Some(observer) => cx.with_program(|program| observer.step(program)),
            None if learns => self.learn(cx, metas, &declared, &outputs),
            None => {}
        }
        Ok(StepOutput { outputs: raws, mode: Mode::Tape })
    }

    /// Counts equal recordings and freezes the last of them into a plan.
    fn learn(&mut self, cx: Cx<'_>, metas: Vec<Meta>, inputs: &[Val], outputs: &[Tensor]) {
        let hash = cx.program_hash();
        if !self.known.last().is_some_and(|known| known.metas == metas) {
            if self.known.len() == PLANS_MAX {
                self.known.remove(0);
            }
            self.known.push(ShapeState { metas, ..ShapeState::default() });
        }
        let Some(known) = self.known.last_mut() else { return };
        known.times = if known.hash == hash { known.times + 1 } else { 1 };
        known.hash = hash.clone();
        if known.times < RECORDINGS {
            return;
        }
        match Plan::freeze(cx, hash, inputs, outputs) {
            Ok(plan) => known.ready = ReplayState::Plan(Box::new(plan), 0),
            Err(reason) => {
                tracing::warn!(%reason, "steps are recorded anew each time");
                known.no_plan = Some(reason.to_string());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        autograd::plan::PlanPiece,
        backend::Outs,
        error::OpErrorKind,
        functional,
        op::{
            Op,
            row::{Kernel, Launch, Launched, Tolerance},
        },
        params::{ParamBuilder, Params},
    };
    use std::cell::Cell;
    use tch::Device;

    thread_local! {
        /// Whether the kernel below can be launched.
        static WORKS: Cell<bool> = const { Cell::new(true) };
        /// Choices of kernels that were made.
        static GENERATION: Cell<u64> = const { Cell::new(0) };
    }

    fn launch(op: &Op, l: &Launch<'_>) -> Launched {
        if WORKS.get() { (op.row().launch)(op, l) } else { Err(OpErrorKind::Lost) }
    }

    static KERNEL: Kernel =
        Kernel { id: "moody", fits: |_, _| Ok(()), launch, tolerance: Tolerance::Exact, deterministic: true };

    /// Runs everything with that kernel.
    struct Moody;

    impl Launcher for Moody {
        fn launch(&self, op: &Op, l: &Launch<'_>) -> Result<(Outs, &'static str), OpErrorKind> {
            Ok((launch(op, l)?, KERNEL.id))
        }

        fn kernel(&self, _op: &Op, _id: &str) -> Option<&'static Kernel> {
            Some(&KERNEL)
        }

        fn generation(&self) -> u64 {
            GENERATION.get()
        }
    }

    /// One step on the number 1.
    fn make(
        executor: &mut Executor,
        leaves: &Params,
        step: u64,
        code: impl FnOnce(&Cx<'_>, &Tensor) -> Result<Tensor, OpError>,
    ) -> StepOutput {
        let request = Request {
            leaves,
            seed: 0,
            step,
            launcher: &Moody,
            collectives: None,
            inputs: vec![Raw::from(1.0_f32)],
            watch: None,
            observer: None,
        };
        executor.step(request, |cx, inputs| Ok::<_, OpError>(vec![code(cx, &inputs[0])?])).unwrap()
    }

    fn step(executor: &mut Executor, leaves: &Params, step: u64) -> Mode {
        let ran = make(executor, leaves, step, |cx, x| functional::add(cx, x, x));
        assert_eq!(ran.outputs[0].double_value(&[]), 2.0);
        ran.mode
    }

    #[test]
    fn a_step_that_cannot_be_captured_is_recorded_and_replayed_again_after_a_launch_that_failed() {
        use Mode::{Plan, Tape};
        let params = ParamBuilder::new().build(0, Device::Cpu).unwrap();
        let mut executor = Executor::new(Mode::Graph);
        let run = |executor: &mut Executor, steps: std::ops::Range<u64>| -> Vec<Mode> {
            steps.map(|at| step(executor, &params, at)).collect()
        };
        assert_eq!(run(&mut executor, 0..3), [Tape, Tape, Plan]);
        // As a capture that the device refused leaves it.
        executor.known[0].no_graph = Some("the device refuses".to_owned());
        assert_eq!(run(&mut executor, 3..5), [Plan, Plan]);
        WORKS.set(false);
        assert_eq!(run(&mut executor, 5..6), [Plan], "the plain reference stands in");
        WORKS.set(true);
        assert_eq!(run(&mut executor, 6..10), [Tape, Tape, Plan, Plan]);
        assert_eq!(executor.new_fallback_reason().as_deref(), Some("the device refuses"));
        assert_eq!(executor.new_fallback_reason(), None, "reported once");
        GENERATION.set(1);
        assert_eq!(run(&mut executor, 10..14), [Tape, Tape, Plan, Plan], "a kernel may not be chosen again");
    }

    #[test]
    fn what_a_capture_cannot_hold_is_set_apart_with_all_that_is_alike_and_runs_into_its_place() {
        let params = ParamBuilder::new().build(0, Device::Cpu).unwrap();
        let mut executor = Executor::new(Mode::Plan);
        let raw = |number: f32| vec![Raw::from(number)];
        for step in 0..3 {
            make(&mut executor, &params, step, |cx, x| {
                let twice = functional::add(cx, x, x)?;
                functional::add(cx, &functional::square(cx, &twice)?, x)
            });
        }
        let plan = executor.plan().unwrap();
        assert_eq!(plan.pieces(false), [PlanPiece::Graph(0..3)]);
        assert_eq!(plan.exclude_from_capture(), None, "nothing is at fault");
        WORKS.set(false);
        plan.run(&raw(2.0), 3, None, None).unwrap();
        WORKS.set(true);
        assert!(plan.launch_failed());
        assert_eq!(plan.exclude_from_capture().as_deref(), Some("add at top"));
        assert_eq!(plan.pieces(false), [PlanPiece::Eager(0), PlanPiece::Graph(1..2), PlanPiece::Eager(2)]);
        assert!(!plan.launch_failed() && plan.exclude_from_capture().is_none());

        assert!(plan.reserve_outputs(0).is_err(), "nothing was kept yet");
        plan.run(&raw(3.0), 4, None, None).unwrap();
        let mut places = plan.reserve_outputs(0).unwrap();
        assert_eq!(places[0].double_value(&[]), 6.0, "of the last run");
        plan.run_eager(0, &[Raw::from(4.0_f32), Raw::from(4.0_f32)], &mut places).unwrap();
        let read = plan.operands(1).unwrap();
        assert_eq!((read[0].double_value(&[]), read[0].data_ptr()), (8.0, places[0].data_ptr()));
    }
}
