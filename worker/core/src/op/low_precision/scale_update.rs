//! The loss scale after a step.

use crate::backend::torch::safe::{Arg, AtenOp};
use crate::op::prelude::*;

/// The loss scale never falls below this, so that endless trouble does not make it 0, from which nothing grows. Below 1 is of
/// use: a loss that is a sum over many cells has gradients that exceed half's range by themselves.
pub const SCALE_MIN: f64 = 1.0 / 65536.0;

attributes! {
    /// Operands: scale (f32, written), good steps (i32, written), whether the step was refused (f32, 0 or 1); all of 0 axes.
    ScaleUpdate {
        growth: F64Bits,
        backoff: F64Bits,
        /// Good steps after which the scale grows.
        interval: i64,
    } => SCALE_UPDATE;
}

const SCALE_UPDATE: OpRow<ScaleUpdate> =
    OpRow::backward("scale_update", shape, launch).writes(|_, i| i <= 1).per_operand(4).export(Export::no(
        "the loss scale is not part of the model",
        "nothing: the scale is changed after the step, outside of the model",
    ));

fn shape(_: &ScaleUpdate, ins: &[&Meta]) -> Inferred {
    for (operand, (meta, kind)) in ins.iter().zip([Kind::Float, Kind::Int, Kind::Float]).enumerate() {
        if meta.kind != kind {
            return Err(OpErrorKind::Kind { operand, found: meta.kind, expected: "f32 scale, i32 count, f32 flag" });
        }
        if meta.rank() != 0 {
            return Err(wrong(operand, meta, "0 axes"));
        }
    }
    Ok(Metas::new())
}

static UPDATE_SCALE: AtenOp = AtenOp::new(c"aten::_amp_update_scale_", c"");

fn launch(op: &ScaleUpdate, l: &Launch<'_>) -> Launched {
    UPDATE_SCALE.call(&[
        Arg::Tensor(l.at(0)),
        Arg::Tensor(l.at(1)),
        Arg::Tensor(l.at(2)),
        Arg::Real(op.growth.get()),
        Arg::Real(op.backoff.get()),
        Arg::Int(op.interval),
    ])?;
    let _ = l.at(0).shallow_clone().f_clamp_min_(SCALE_MIN)?;
    Ok(SmallVec::new())
}
