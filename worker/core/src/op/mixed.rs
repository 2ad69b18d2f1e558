//! What training in low precision does beside the model: refreshing the low-precision copies of the weights, and moving
//! the loss scale.

use super::Op;
use super::infer::{Inferred, Metas, float, mismatch, wrong};
use super::row::{Export, Launch, Launched, OpRow, free, per_operand};
use super::value::Meta;
use crate::backend::torch::safe::{Arg, AtenOp};
use crate::error::OpErrorKind;
use smallvec::SmallVec;
use tch::Kind;

/// The loss scale never falls below this, so that endless trouble does not make it 0, from which nothing grows. Below 1 is of
/// use: a loss that is a sum over many cells has gradients that exceed half's range by themselves.
pub const SCALE_MIN: f64 = 1.0 / 65536.0;

/// CastInto, ScaleUpdate.
///
/// CastInto's operands: destination (written), source of the same shape. ScaleUpdate's: scale (f32, written), good steps
/// (i32, written), whether the step was refused (f32, 0 or 1); all of 0 axes.
pub static ROWS: [OpRow; 2] = [
    OpRow {
        export: Export::no(
            "the weights' low-precision copies are not part of the model",
            "the weight itself, by Cx::param",
        ),
        ..OpRow::backward("cast_into", shape_cast_into, launch_cast_into).flops(free)
    },
    OpRow {
        export: Export::no(
            "the loss scale is not part of the model",
            "nothing: the scale is changed after the step, outside of the model",
        ),
        ..OpRow::backward("scale_update", shape_scale_update, launch_scale_update).flops(per_operand::<4>)
    },
];

/// The row of an operation of this family.
pub(super) fn row(op: &Op) -> &'static OpRow {
    match op {
        Op::CastInto => &ROWS[0],
        Op::ScaleUpdate { .. } => &ROWS[1],
        _ => unreachable!("an operation of another family"),
    }
}

fn shape_cast_into(_: &Op, ins: &[&Meta]) -> Inferred {
    float(0, ins[0])?;
    float(1, ins[1])?;
    if ins[0].shape != ins[1].shape {
        return Err(mismatch(&ins[0].shape, &ins[1].shape, "destination and source of one shape"));
    }
    Ok(Metas::new())
}

fn launch_cast_into(_: &Op, l: &Launch<'_>) -> Launched {
    l.at(0).shallow_clone().f_copy_(l.at(1))?;
    Ok(SmallVec::new())
}

fn shape_scale_update(_: &Op, ins: &[&Meta]) -> Inferred {
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

fn launch_scale_update(op: &Op, l: &Launch<'_>) -> Launched {
    let Op::ScaleUpdate { growth, backoff, interval } = op else { unreachable!("row of another operation") };
    UPDATE_SCALE.call(&[
        Arg::Tensor(l.at(0)),
        Arg::Tensor(l.at(1)),
        Arg::Tensor(l.at(2)),
        Arg::Real(growth.get()),
        Arg::Real(backoff.get()),
        Arg::Int(*interval),
    ])?;
    let _ = l.at(0).shallow_clone().f_clamp_min_(SCALE_MIN)?;
    Ok(SmallVec::new())
}
