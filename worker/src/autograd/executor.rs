//! How a step is executed: recorded by its code, replayed from the record, or launched as a captured graph.
//!
//! The first steps run the code and record. When two steps in a row record the same program, the code is left out and the
//! plan runs; on a device that can, the plan is captured. Graphs that take longer than the plan are given up. A change of the
//! inputs' shapes begins anew, beside the old plan.
//!
//! **Invariant:** the mode changes nothing but the time: all three compute the same bits with the same kernels.

use super::cx::Cx;
use super::graph::Captured;
use super::leaf::Leaves;
use super::observe::Observe;
use super::plan::{Plan, Seen};
use super::program::Phase;
use super::trial::Trial;
use crate::error::OpError;
use crate::kernel::Launcher;
use crate::op::collective::Collectives;
use crate::op::value::{Meta, Tensor, Val};
use std::collections::BTreeSet;
use tch::Tensor as Raw;

/// Programs kept ready: one per shape of the inputs.
const PLANS_MAX: usize = 4;
/// Runs of a plan before it is captured: libraries have made their workspaces on this stream by then.
const RUNS_BEFORE_CAPTURE: u32 = 3;
/// Equal recordings in a row before the code is left out.
const RECORDINGS: u32 = 2;

/// How far a step may go from its code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// The code runs and records.
    Tape,
    /// The record runs.
    Plan,
    /// The captured record is launched.
    Graph,
}

impl Mode {
    /// The name in configuration and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tape => "tape",
            Self::Plan => "plan",
            Self::Graph => "graph",
        }
    }
}

/// What a step needs beside its code.
pub struct Request<'a> {
    /// Parameters.
    pub leaves: &'a dyn Leaves,
    /// Seed of the random generator.
    pub seed: u64,
    /// Optimizer step.
    pub step: u64,
    /// Who chooses kernels; those of a plan are the ones it was recorded with.
    pub launcher: &'a dyn Launcher,
    /// The other ranks, if any.
    pub collectives: Option<&'a dyn Collectives>,
    /// What changes on every step, in a fixed order: data, rates, flags.
    pub inputs: Vec<Raw>,
    /// Told the phase of each record of a replay.
    pub watch: Option<&'a mut dyn FnMut(Phase)>,
    /// Sees every operation; then the step runs by its code.
    pub observer: Option<&'a dyn Observe>,
}

/// What a step gave.
pub struct Ran {
    /// What the code returned, or the same values of a replay.
    pub outputs: Vec<Raw>,
    /// How it was executed.
    pub mode: Mode,
}

/// What is known of the steps with one shape of the inputs.
struct Known {
    metas: Vec<Meta>,
    hash: String,
    times: u32,
    ready: Ready,
    /// Why there will be no plan.
    no_plan: Option<String>,
    /// Why there will be no graph; the plan runs all the same.
    no_graph: Option<String>,
    /// What runs between graphs, because none can hold it.
    apart: Option<String>,
    trial: Trial,
}

/// How far the steps of one shape have come.
enum Ready {
    /// The code runs.
    No,
    /// The record runs; how often it has.
    Plan(Box<Plan>, u32),
    /// The graphs are launched.
    Graph(Box<Captured>),
}

impl Known {
    /// Why it is not replayed, or not captured, once that is known.
    fn refusal(&self) -> Option<&String> {
        self.no_plan.as_ref().or(self.no_graph.as_ref()).or(self.apart.as_ref())
    }

    /// Captures a plan that has run often enough.
    fn capture_when_due(&mut self, inputs: &[Raw], inside: Option<&dyn Collectives>) {
        let due = matches!(&self.ready, Ready::Plan(_, runs) if *runs == RUNS_BEFORE_CAPTURE);
        if !due || self.no_graph.is_some() {
            return;
        }
        let Ready::Plan(plan, runs) = std::mem::replace(&mut self.ready, Ready::No) else { return };
        self.ready = match Captured::new(*plan, inputs, inside) {
            Ok(captured) => {
                tracing::info!(graphs = captured.graphs(), "the step is captured");
                Ready::Graph(Box::new(captured))
            }
            Err((mut plan, reason)) => match plan.set_apart() {
                Some(what) => {
                    tracing::warn!(%reason, what, "cannot be captured; it runs between graphs");
                    let before = self.apart.take().map_or(String::new(), |before| format!("{before}; "));
                    self.apart =
                        Some(format!("{before}{what} runs between graphs, for it cannot be captured: {reason}"));
                    Ready::Plan(plan, runs - 1)
                }
                None => {
                    tracing::warn!(%reason, "the step cannot be captured; its record runs");
                    self.no_graph = Some(reason.to_string());
                    Ready::Plan(plan, runs)
                }
            },
        };
    }

    /// A kernel could not be launched: the step is recorded again.
    fn begin_anew(&mut self) {
        self.ready = Ready::No;
        self.times = 0;
        self.trial = Trial::default();
    }

    /// Gives graphs up that were slower than their plan.
    fn keep_what_wins(&mut self) {
        let Some([record, graphs]) = self.trial.lost_by_graphs() else { return };
        let Ready::Graph(captured) = std::mem::replace(&mut self.ready, Ready::No) else { return };
        self.no_graph =
            Some(format!("a step takes {graphs:.2} ms as graphs and {record:.2} by its record, which runs"));
        self.ready = Ready::Plan(captured.into_plan(), RUNS_BEFORE_CAPTURE);
    }
}

/// Replays a record, telling the phases.
fn run(plan: &mut Plan, inputs: &[Raw], request: &mut Request<'_>) -> Result<Vec<Raw>, OpError> {
    let Some(watch) = request.watch.take() else {
        return plan.run(inputs, request.step, request.collectives, None);
    };
    let mut observer = |seen: &Seen<'_>| {
        watch(seen.rec.phase);
        Ok(())
    };
    plan.run(inputs, request.step, request.collectives, Some(&mut observer))
}

/// Chooses and keeps.
pub struct Executor {
    limit: Mode,
    capture_collectives: bool,
    known: Vec<Known>,
    /// The launcher's when the steps known were recorded.
    generation: u64,
    /// Refusals that were given.
    told: BTreeSet<String>,
}

impl Executor {
    /// Goes as far as `limit` from the code.
    pub fn new(limit: Mode) -> Self {
        Self { limit, capture_collectives: false, known: Vec::new(), generation: 0, told: BTreeSet::new() }
    }

    /// Captures the collectives with the rest of the step, in one graph, instead of running them between graphs. They must be
    /// such that a capture takes: NCCL's.
    pub fn capture_collectives(&mut self, inside: bool) {
        self.capture_collectives = inside;
    }

    /// Whether it captures collectives where it captures.
    pub fn captures_collectives(&self) -> bool {
        self.capture_collectives
    }

    /// Forgets every plan: after precision or the parameters' storage changed.
    pub fn reset(&mut self) {
        self.known.clear();
    }

    /// Why steps are not replayed, or not captured, once that is known.
    pub fn refusal(&self) -> Option<&str> {
        self.known.iter().find_map(Known::refusal).map(String::as_str)
    }

    /// A reason as [`Self::refusal`] gives it that this did not give before.
    pub fn new_refusal(&mut self) -> Option<String> {
        let new = self.known.iter().filter_map(Known::refusal).find(|reason| !self.told.contains(*reason))?.clone();
        self.told.insert(new.clone());
        Some(new)
    }

    /// The plan of the last step, if it was replayed.
    pub fn plan(&mut self) -> Option<&mut Plan> {
        match &mut self.known.last_mut()?.ready {
            Ready::No => None,
            Ready::Plan(plan, _) => Some(plan),
            Ready::Graph(captured) => Some(captured.plan()),
        }
    }

    /// Executes one step. `code` computes it from the inputs and says what it gives; it is called unless a plan is ready.
    ///
    /// # Errors
    /// Those of the code, and those of a kernel or a collective.
    pub fn step<E: From<OpError>>(
        &mut self,
        mut request: Request<'_>,
        code: impl FnOnce(&Cx<'_>, &[Tensor]) -> Result<Vec<Tensor>, E>,
    ) -> Result<Ran, E> {
        let generation = request.launcher.generation();
        if std::mem::replace(&mut self.generation, generation) != generation {
            self.reset();
        }
        let inputs = std::mem::take(&mut request.inputs);
        let metas: Vec<Meta> = inputs.iter().map(Meta::of).collect();
        // The last one used is the last in the list.
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
                Ready::No => {}
                Ready::Plan(plan, runs) => {
                    *runs = runs.saturating_add(1);
                    let timed = captures && *runs <= RUNS_BEFORE_CAPTURE;
                    let mut run = || run(plan, &inputs, &mut request);
                    let outputs = if timed { known.trial.record(run) } else { run() }?;
                    if plan.has_stopped() {
                        known.begin_anew();
                    }
                    return Ok(Ran { outputs, mode: Mode::Plan });
                }
                Ready::Graph(captured) => {
                    let run = || captured.run(&inputs, request.step, request.collectives);
                    let outputs = known.trial.graphs(run)?;
                    if captured.plan().has_stopped() {
                        known.begin_anew();
                    }
                    known.keep_what_wins();
                    return Ok(Ran { outputs, mode: Mode::Graph });
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
    ) -> Result<Ran, E> {
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
        Ok(Ran { outputs: raws, mode: Mode::Tape })
    }

    /// Counts equal recordings and freezes the last of them.
    fn learn(&mut self, cx: Cx<'_>, metas: Vec<Meta>, inputs: &[Val], outputs: &[Tensor]) {
        let hash = cx.program_hash();
        if !self.known.last().is_some_and(|known| known.metas == metas) {
            if self.known.len() == PLANS_MAX {
                self.known.remove(0);
            }
            let hash = String::new();
            let ready = Ready::No;
            let no_plan = None;
            let no_graph = None;
            let apart = None;
            self.known.push(Known { metas, hash, times: 0, ready, no_plan, no_graph, apart, trial: Trial::default() });
        }
        let Some(known) = self.known.last_mut() else { return };
        known.times = if known.hash == hash { known.times + 1 } else { 1 };
        known.hash = hash.clone();
        if known.times < RECORDINGS {
            return;
        }
        match Plan::freeze(cx, hash, inputs, outputs) {
            Ok(plan) => known.ready = Ready::Plan(Box::new(plan), 0),
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
        autograd::plan::Piece,
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
    ) -> Ran {
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
        assert_eq!(executor.new_refusal().as_deref(), Some("the device refuses"));
        assert_eq!(executor.new_refusal(), None, "told once");
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
        assert_eq!(plan.pieces(false), [Piece::Graph(0..3)]);
        assert_eq!(plan.set_apart(), None, "nothing is at fault");
        WORKS.set(false);
        plan.run(&raw(2.0), 3, None, None).unwrap();
        WORKS.set(true);
        assert!(plan.has_stopped());
        assert_eq!(plan.set_apart().as_deref(), Some("add at top"));
        assert_eq!(plan.pieces(false), [Piece::Apart(0), Piece::Graph(1..2), Piece::Apart(2)]);
        assert!(!plan.has_stopped() && plan.set_apart().is_none());

        assert!(plan.keep_place(0).is_err(), "nothing was kept yet");
        plan.run(&raw(3.0), 4, None, None).unwrap();
        let mut places = plan.keep_place(0).unwrap();
        assert_eq!(places[0].double_value(&[]), 6.0, "of the last run");
        plan.run_apart(0, &[Raw::from(4.0_f32), Raw::from(4.0_f32)], &mut places).unwrap();
        let read = plan.operands(1).unwrap();
        assert_eq!((read[0].double_value(&[]), read[0].data_ptr()), (8.0, places[0].data_ptr()));
    }
}
