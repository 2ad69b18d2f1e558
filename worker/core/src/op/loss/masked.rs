//! Sums of element losses over valid cells: the Huber loss and the squared error, which differ in the function of the difference.
//!
//! **Invariant:** a cell whose mask is false contributes exactly 0 to the value and to the gradient, whatever its target holds, NaN
//! included. A NaN prediction at a valid cell shows.

use super::not_exported;
use crate::op::Op;
use crate::op::prelude::*;

attributes! {
    MaskedHuber { delta: F64Bits } => MASKED_HUBER;
    /// The reverse. Operands: the gradient and the masked difference.
    MaskedHuberBackward { delta: F64Bits } => MASKED_HUBER_BACKWARD;
    MaskedMse => MASKED_MSE;
    /// The reverse. Operands: the gradient and the masked difference.
    MaskedMseBackward => MASKED_MSE_BACKWARD;
}

const MASKED_HUBER: OpRow<MaskedHuber> = OpRow::<MaskedHuber>::forward(
    "masked_huber",
    shape,
    launch_huber,
    |op, v| vjp(MaskedHuberBackward { delta: op.delta }.into(), v),
    |d| samples(d, MaskedHuber { delta: 0.7.into() }),
)
.saves(0, 0b10)
.class(Class::Full)
.per_operand(8)
.export(not_exported());

const MASKED_HUBER_BACKWARD: OpRow<MaskedHuberBackward> = OpRow::<MaskedHuberBackward>::backward(
    "masked_huber_backward",
    |_, ins| one(ins[1].clone()),
    |op, l| Ok(smallvec![l.at(1).f_clamp(-op.delta.get(), op.delta.get())?.f_mul_(l.at(0))?]),
)
.per_result(3);

fn launch_huber(op: &MaskedHuber, l: &Launch<'_>) -> Launched {
    let difference = difference(l)?;
    let mut size = difference.f_abs()?;
    let near = size.f_clamp_max(op.delta.get())?;
    // near·(size − near/2) is size²/2 below delta and delta·(size − delta/2) above.
    let sum = size.f_sub_(&near.f_mul_scalar(0.5)?)?.f_mul_(&near)?.f_sum(None)?;
    Ok(smallvec![sum, difference])
}

const MASKED_MSE: OpRow<MaskedMse> =
    OpRow::forward("masked_mse", shape, launch_mse, |_, v| vjp(MaskedMseBackward.into(), v), |d| samples(d, MaskedMse))
        .saves(0, 0b10)
        .class(Class::Full)
        .per_operand(4)
        .export(not_exported());

const MASKED_MSE_BACKWARD: OpRow<MaskedMseBackward> = OpRow::backward(
    "masked_mse_backward",
    |_, ins| one(ins[1].clone()),
    |_, l| Ok(smallvec![l.at(1).f_mul(l.at(0))?.f_mul_scalar_(2.0)?]),
)
.per_result(2);

fn launch_mse(_: &MaskedMse, l: &Launch<'_>) -> Launched {
    let difference = difference(l)?;
    let sum = difference.f_mul(&difference)?.f_sum(None)?;
    Ok(smallvec![sum, difference])
}

/// The shape rule of sums of element losses. Operands: prediction, target, mask (Bool, true = valid). Results: the sum, and the masked
/// difference as saved intermediate.
fn shape<A>(_: &A, ins: &[&Meta]) -> Inferred {
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

/// Prediction less target where the mask is true, else 0.
fn difference(l: &Launch<'_>) -> Result<Raw, OpErrorKind> {
    Ok(l.at(0).f_sub(l.at(1))?.f_where_scalarother(l.at(2), 0.0)?)
}

/// The reverse rule: emits `reverse` with the gradient and the masked difference. A target takes no gradient.
fn vjp(reverse: Op, v: &Vjp<'_>) -> Result<Grads, OpError> {
    if v.needs(1) {
        return Err(v.fail(OpErrorKind::NotDifferentiable));
    }
    Ok(smallvec![Some(v.call(reverse, &[v.g()?, v.output(1)?])?), None, None])
}

fn samples(d: &mut SampleRng, op: impl Into<Op>) -> Vec<Sample> {
    let op = op.into();
    let (a, b) = d.sizes();
    vec![
        sample(op.clone(), [normal(&[a, b]), normal(&[a, b]), bools(&[a, b])]),
        sample(op.clone(), [normal(&[b, a]).transposed(), normal(&[b, a]).strided(), bools(&[b, a])]),
        sample(op, [normal(&[0, b]), normal(&[0, b]), bools(&[0, b])]),
    ]
}
