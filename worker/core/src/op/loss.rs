//! Sums of element losses over valid cells.
//!
//! **Invariant:** a cell whose mask is false contributes exactly 0 to the value and to the gradient, whatever its
//! target holds, NaN included. A NaN prediction at a valid cell shows.

use super::Op;
use super::infer::{Inferred, boolean, float, mismatch};
use super::row::{Export, Launch, Launched, OpRow, per_operand, per_result};
use super::sample::{bools, normal, sample};
use super::value::Meta;
use super::vjp::{Grads, Vjp};
use crate::error::{OpError, OpErrorKind};
use smallvec::smallvec;

const NOT_EXPORTED: Export = Export::no(
    "a training objective, not part of the model",
    "nothing: a model answers, and train.loss or the user's learner judges it",
);

/// MaskedHuber, MaskedHuberBackward, MaskedMse, MaskedMseBackward.
///
/// Operands: prediction, target, mask (Bool, true = valid). Results: the sum, and the masked difference as saved
/// intermediate.
pub static ROWS: [OpRow; 4] = [
    OpRow::forward("masked_huber", shape, launch, vjp, |d| {
        let a = d.size(2, 4);
        let b = d.size(5, 7);
        let op = || Op::MaskedHuber { delta: 0.7.into() };
        vec![
            sample(op(), [normal(&[a, b]), normal(&[a, b]), bools(&[a, b])]),
            sample(op(), [normal(&[b, a]).transposed(), normal(&[b, a]).strided(), bools(&[b, a])]),
            sample(op(), [normal(&[0, b]), normal(&[0, b]), bools(&[0, b])]),
        ]
    })
    .saves(0, 0b10)
    .flops(per_operand::<8>)
    .export(NOT_EXPORTED),
    OpRow::backward("masked_huber_backward", shape_backward, launch_backward).flops(per_result::<3>),
    OpRow::forward("masked_mse", shape, launch, vjp, |d| {
        let a = d.size(2, 4);
        let b = d.size(5, 7);
        vec![
            sample(Op::MaskedMse, [normal(&[a, b]), normal(&[a, b]), bools(&[a, b])]),
            sample(Op::MaskedMse, [normal(&[b, a]).transposed(), normal(&[b, a]), bools(&[b, a])]),
            sample(Op::MaskedMse, [normal(&[a, 0]), normal(&[a, 0]), bools(&[a, 0])]),
        ]
    })
    .saves(0, 0b10)
    .flops(per_operand::<4>)
    .export(NOT_EXPORTED),
    OpRow::backward("masked_mse_backward", shape_backward, launch_backward).flops(per_result::<2>),
];

fn shape(_: &Op, ins: &[&Meta]) -> Inferred {
    float(0, ins[0])?;
    float(1, ins[1])?;
    boolean(2, ins[2])?;
    for other in &ins[1..] {
        if other.shape != ins[0].shape {
            return Err(mismatch(&ins[0].shape, &other.shape, "prediction, target and mask of one shape"));
        }
    }
    Ok(smallvec![ins[0].with_shape([].as_slice()), ins[0].clone()])
}

fn launch(op: &Op, l: &Launch<'_>) -> Launched {
    let prediction = l.at(0);
    let target = l.at(1);
    let mask = l.at(2);
    let difference = prediction.f_sub(target)?.f_where_scalarother(mask, 0.0)?;
    let sum = match op {
        Op::MaskedHuber { delta } => {
            let mut size = difference.f_abs()?;
            let near = size.f_clamp_max(delta.get())?;
            // near·(size − near/2) is size²/2 below delta and delta·(size − delta/2) above.
            size.f_sub_(&near.f_mul_scalar(0.5)?)?.f_mul_(&near)?.f_sum(None)?
        }
        Op::MaskedMse => difference.f_mul(&difference)?.f_sum(None)?,
        _ => unreachable!("row of another operation"),
    };
    Ok(smallvec![sum, difference])
}

fn vjp(v: &Vjp<'_>) -> Result<Grads, OpError> {
    let op = match *v.op() {
        Op::MaskedHuber { delta } => Op::MaskedHuberBackward { delta },
        _ => Op::MaskedMseBackward,
    };
    if v.needs(1) {
        return Err(v.emit.fail(v.op(), OpErrorKind::NotDifferentiable));
    }
    Ok(smallvec![Some(v.call(op, &[v.g()?, v.output(1)?])?), None, None])
}

fn shape_backward(_: &Op, ins: &[&Meta]) -> Inferred {
    super::infer::one(ins[1].clone())
}

fn launch_backward(op: &Op, l: &Launch<'_>) -> Launched {
    let g = l.at(0);
    let difference = l.at(1);
    Ok(smallvec![match op {
        Op::MaskedHuberBackward { delta } => difference.f_clamp(-delta.get(), delta.get())?.f_mul_(g)?,
        _ => difference.f_mul(g)?.f_mul_scalar_(2.0)?,
    }])
}
