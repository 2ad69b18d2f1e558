//! A plan captured as CUDA graphs: one graph for each run of records between collectives and records that no graph can hold, all in one
//! pool of memory.
//!
//! **Invariant:** inputs are copied into tensors of the capture; everything a graph reads from outside is held here, so that
//! no address in it can go away.

use super::call::NoGrad;
use super::plan::{Piece, Plan};
use crate::backend::duplicate;
use crate::backend::graph::{Capture, Graph, Pool, at_its_address};
use crate::error::{OpError, OpErrorKind};
use crate::op::Op;
use crate::op::collective::{self, Collectives};
use crate::op::row::Launch;
use tch::Tensor as Raw;

/// What a replay does, in order.
enum Part {
    /// Launches a captured run.
    Launch(Graph),
    /// Runs one collective.
    Together(Op, Vec<Raw>),
    /// Runs the record of this number with these operands, into these results.
    Apart(usize, Vec<Raw>, Vec<Raw>),
}

/// A captured plan.
pub(super) struct Captured {
    plan: Plan,
    inputs: Vec<Raw>,
    outputs: Vec<Raw>,
    parts: Vec<Part>,
}

impl Captured {
    /// Captures `plan`, which has run before on this thread's current stream. Nothing is computed by this. With `inside`, the
    /// collectives are captured too, in one graph with everything else; else they run between graphs.
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

    /// Number of graphs.
    pub(super) fn graphs(&self) -> usize {
        self.parts.iter().filter(|part| matches!(part, Part::Launch(_))).count()
    }

    /// The plan alone; its graphs are gone.
    pub(super) fn into_plan(mut self) -> Box<Plan> {
        self.plan.clear();
        Box::new(self.plan)
    }

    /// The captured plan.
    pub(super) fn plan(&mut self) -> &mut Plan {
        &mut self.plan
    }

    /// Runs the step. The outputs are copies: the next run overwrites what the graphs made.
    ///
    /// # Errors
    /// What the device or a collective says.
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
                    Part::Launch(graph) => graph.replay()?,
                    Part::Together(op, ins) => {
                        let ins: Vec<&Raw> = ins.iter().collect();
                        collective::run(op, &Launch { ins: &ins }, collectives)?;
                    }
                    Part::Apart(at, ins, outs) => self.plan.run_apart(*at, ins, outs)?,
                }
            }
            Ok(self.outputs.iter().map(duplicate).collect::<Result<_, _>>()?)
        };
        let made = go();
        made.map_err(|kind| OpError { op: "graph", place: "top".to_owned(), kind: Box::new(kind) })
    }
}

type Parts = (Vec<Raw>, Vec<Raw>, Vec<Part>);

fn capture(plan: &mut Plan, inputs: &[Raw], inside: Option<&dyn Collectives>) -> Result<Parts, OpError> {
    let _no_grad = NoGrad::enter();
    let fail = |kind: OpErrorKind| OpError { op: "graph", place: "top".to_owned(), kind: Box::new(kind) };
    let own = inputs.iter().map(duplicate).collect::<Result<Vec<_>, _>>();
    let own = own.map_err(|error| fail(error.into()))?;
    let pool = Pool::new().map_err(|error| fail(error.into()))?;
    plan.bind(&own, 0)?;
    let mut parts = Vec::new();
    // What is lent lies elsewhere later in the step.
    let here = |operands: Vec<Raw>| {
        let here = operands.iter().map(at_its_address).collect::<Result<Vec<_>, _>>();
        here.map_err(|error| fail(error.into()))
    };
    for piece in plan.pieces(inside.is_some()) {
        match piece {
            Piece::Graph(range) => {
                let capture = Capture::begin(pool).map_err(|error| fail(error.into()))?;
                plan.run_range(range, inside, None)?;
                parts.push(Part::Launch(capture.end().map_err(|error| fail(error.into()))?));
            }
            Piece::Together(range) => {
                for at in range {
                    parts.push(Part::Together(plan.program().recs()[at].op.clone(), here(plan.operands(at)?)?));
                    plan.let_go(at);
                }
            }
            Piece::Apart(at) => {
                let operands = here(plan.operands(at)?)?;
                parts.push(Part::Apart(at, operands, plan.keep_place(at)?));
            }
        }
    }
    let outputs = plan.take_outputs()?;
    if plan.has_stopped() {
        // The graph would run the reference ever after.
        return Err(fail(OpErrorKind::NotCaptured));
    }
    Ok((own, outputs, parts))
}
