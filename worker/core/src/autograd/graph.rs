//! A plan captured as CUDA graphs: one graph for each run of records between collectives and records that cannot be captured, all
//! with one memory pool.
//!
//! **Invariant:** inputs are copied into tensors of the capture, and everything a graph reads from outside is held here, so that
//! every address in a graph stays valid.

use super::no_grad::NoGrad;
use super::plan::{Plan, PlanPiece};
use crate::backend::duplicate;
use crate::backend::graph::{Capture, Graph, Pool, at_its_address};
use crate::error::{OpError, OpErrorKind};
use crate::op::Op;
use crate::op::collective::{self, Collectives};
use crate::op::row::Launch;
use tch::Tensor as Raw;

enum ReplayStep {
    Launch(Graph),
    Collective(Op, Vec<Raw>),
    /// Runs the record of this number with these operands, into these results.
    Eager(usize, Vec<Raw>, Vec<Raw>),
}

pub(super) struct Captured {
    plan: Plan,
    inputs: Vec<Raw>,
    outputs: Vec<Raw>,
    parts: Vec<ReplayStep>,
}

impl Captured {
    /// Captures `plan`, which has run before on this thread's current stream. The capture computes nothing. With `inside`, the
    /// collectives are captured too, in one graph with everything else; otherwise they run between graphs.
    ///
    /// # Errors
    /// The plan comes back with the reason: it can run on without being captured.
    pub(super) fn new(
        mut plan: Plan,
        inputs: &[Raw],
        inside: Option<&dyn Collectives>,
    ) -> Result<Self, (Box<Plan>, OpError)> {
        match capture(&mut plan, inputs, inside) {
            Ok((inputs, outputs, parts)) => Ok(Self { plan, inputs, outputs, parts }),
            Err(error) => {
                plan.clear();
                Err((Box::new(plan), error))
            }
        }
    }

    pub(super) fn graphs(&self) -> usize {
        self.parts.iter().filter(|part| matches!(part, ReplayStep::Launch(_))).count()
    }

    /// Drops the graphs and returns the plan.
    pub(super) fn into_plan(mut self) -> Box<Plan> {
        self.plan.clear();
        Box::new(self.plan)
    }

    pub(super) fn plan(&mut self) -> &mut Plan {
        &mut self.plan
    }

    /// Runs the step. The outputs are copies, since the next run overwrites the graphs' results.
    pub(super) fn run(
        &mut self,
        inputs: &[Raw],
        step: u64,
        collectives: Option<&dyn Collectives>,
    ) -> Result<Vec<Raw>, OpError> {
        let _no_grad = NoGrad::enter();
        self.plan.set_step(step)?;
        let mut go = || -> Result<Vec<Raw>, OpErrorKind> {
            collectives.map_or(Ok(()), Collectives::intact).map_err(OpErrorKind::Hook)?;
            for (own, given) in self.inputs.iter_mut().zip(inputs) {
                own.f_copy_(given)?;
            }
            for part in &mut self.parts {
                match part {
                    ReplayStep::Launch(graph) => graph.replay()?,
                    ReplayStep::Collective(op, ins) => {
                        let ins: Vec<&Raw> = ins.iter().collect();
                        collective::run(op, &Launch { ins: &ins }, collectives)?;
                    }
                    ReplayStep::Eager(at, ins, outs) => self.plan.run_eager(*at, ins, outs)?,
                }
            }
            Ok(self.outputs.iter().map(duplicate).collect::<Result<_, _>>()?)
        };
        go().map_err(failed)
    }
}

fn failed(kind: impl Into<OpErrorKind>) -> OpError {
    OpError { op: "graph", place: "top".to_owned(), kind: Box::new(kind.into()) }
}

type CapturedParts = (Vec<Raw>, Vec<Raw>, Vec<ReplayStep>);

fn capture(plan: &mut Plan, inputs: &[Raw], inside: Option<&dyn Collectives>) -> Result<CapturedParts, OpError> {
    let _no_grad = NoGrad::enter();
    let own = inputs.iter().map(duplicate).collect::<Result<Vec<_>, _>>().map_err(failed)?;
    let pool = Pool::new().map_err(failed)?;
    plan.bind(&own, 0)?;
    let mut parts = Vec::new();
    // A sharded array has another address later in the step.
    let here = |operands: Vec<Raw>| operands.iter().map(at_its_address).collect::<Result<Vec<_>, _>>().map_err(failed);
    for piece in plan.pieces(inside.is_some()) {
        match piece {
            PlanPiece::Graph(range) => {
                let capture = Capture::begin(pool).map_err(failed)?;
                plan.run_range(range, inside, None)?;
                parts.push(ReplayStep::Launch(capture.end().map_err(failed)?));
            }
            PlanPiece::Collectives(range) => {
                for at in range {
                    parts.push(ReplayStep::Collective(plan.program().recs()[at].op.clone(), here(plan.operands(at)?)?));
                    plan.drop_dead_values(at);
                }
            }
            PlanPiece::Eager(at) => {
                let operands = here(plan.operands(at)?)?;
                parts.push(ReplayStep::Eager(at, operands, plan.reserve_outputs(at)?));
            }
        }
    }
    let outputs = plan.take_outputs()?;
    if plan.launch_failed() {
        // The graph would contain the reference instead of the kernel, in every replay.
        return Err(failed(OpErrorKind::NotCaptured));
    }
    Ok((own, outputs, parts))
}
