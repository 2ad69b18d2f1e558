//! Runs one operation without autocast: infers shapes, launches, records and tapes it.

use super::cx::Cx;
use super::program::{Phase, Rec};
use super::tape_node::{TapeNode, Taped};
use crate::backend::Outs;
use crate::backend::torch::safe::version;
use crate::error::OpError;
use crate::op::Op;
use crate::op::collective;
use crate::op::infer::float;
use crate::op::row::{Launch, PLAIN};
use crate::op::value::{Meta, Role, Tensor, Val};
use crate::op::vjp::{Kept, RESULT_SLOT, Results};
use smallvec::SmallVec;

/// Runs `op` on `ins` as they are and returns its results.
pub(super) fn run(cx: &Cx<'_>, op: Op, ins: &[&Tensor]) -> Result<Results, OpError> {
    cx.unshard_operands(ins)?;
    let row = op.row();
    let metas: SmallVec<[&Meta; 4]> = ins.iter().map(|t| t.meta()).collect();
    let inferred = (row.shape)(&op, &metas).map_err(|kind| cx.fail(row.name, kind))?;
    let raws: SmallVec<[&tch::Tensor; 4]> = ins.iter().map(|t| t.raw()).collect();
    let launch = Launch { ins: &raws };
    if let Some(observer) = cx.observer {
        observer.begin();
    }
    let launched = if op.is_collective() {
        collective::run(&op, &launch, cx.collectives).map(|()| (Outs::new(), PLAIN))
    } else {
        cx.launcher.launch(&op, &launch)
    };
    if let Some(observer) = cx.observer {
        observer.end();
    }
    let (outs, kernel) = launched.map_err(|kind| cx.fail(row.name, kind))?;
    debug_assert_eq!(outs.len(), inferred.len(), "{} returns what its shape rule says", row.name);

    let mut state = cx.state.borrow_mut();
    let state = &mut *state;
    let tape = cx.taping.get() && row.vjp.is_some() && ins.iter().any(|t| t.requires_grad());
    let first_out = state.program.next();
    let differentiable = op.differentiable_outs();
    let mut results = Results::new();
    for (i, (raw, meta)) in outs.into_iter().zip(inferred).enumerate() {
        let requires_grad = tape && i < differentiable && float(i, &meta).is_ok();
        let val = state.program.value(meta.clone(), Role::Temp, requires_grad);
        results.push(Tensor::new(raw, val, meta, requires_grad));
    }
    let vals: SmallVec<[Val; 4]> = ins.iter().map(|t| t.val()).collect();
    let save = row.save;
    let phase = cx.phase.get();
    let scope = cx.scope.get();
    let rec = Rec { op, ins: vals, first_out, outs: results.len() as u32, kernel, phase, scope };
    let rec = state.program.record(rec);
    if tape {
        let mut kept: SmallVec<[Kept; 3]> = SmallVec::new();
        let sources = ins.iter().copied().enumerate().filter(|(i, _)| save.operand(*i));
        kept.extend(sources.map(|(i, t)| keep(i as u8, t)));
        let made = results.iter().enumerate().filter(|(i, _)| save.result(*i));
        kept.extend(made.map(|(i, t)| keep(RESULT_SLOT + i as u8, t)));
        state.nodes.push(TapeNode::Rec(Taped { rec, kept }));
    }
    if let Some(open) = state.open.as_mut().filter(|_| phase != Phase::Comm) {
        open.note(ins);
    }
    cx.follow(&state.program.recs()[rec as usize]);
    Ok(results)
}

fn keep(slot: u8, tensor: &Tensor) -> Kept {
    Kept { slot, version: version(tensor.raw()), tensor: tensor.clone() }
}
