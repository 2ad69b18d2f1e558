//! How much of its state a head of retention keeps from token to token: λ = 1 − 2^(−β), with β kept between two bounds.

use crate::backend::cuda::retention_decay;
use crate::op::elementwise::clamp::{clamped, inside};
use crate::op::prelude::*;
use enn_common::graph::{Binary, Unary};
use std::f64::consts::LN_2;

attributes! {
    /// Operand: β.
    RetentionDecay { lo: F64Bits, hi: F64Bits } => RETENTION_DECAY;
    /// The reverse. Operands: the gradient of λ, and β. Where β is out of its bounds no gradient flows.
    RetentionDecayBackward { lo: F64Bits, hi: F64Bits } => RETENTION_DECAY_BACKWARD;
}

const RETENTION_DECAY: OpRow<RetentionDecay> = OpRow::<RetentionDecay>::forward(
    "retention_decay",
    same_shape,
    launch,
    |op, v| Ok(grad(v.call(RetentionDecayBackward { lo: op.lo, hi: op.hi }, &[v.g()?, v.input(0)?])?)),
    samples,
)
.saves(1, 0)
.kernels(&[Kernel::new(
    "cuda.retention_decay",
    |_, l| on_device(l.at(0)),
    |op, l| Ok(smallvec![retention_decay::forward(l.at(0), (op.lo.get(), op.hi.get()))?]),
)])
.class(Class::Full)
.per_result(5)
.lowers(lower);

const RETENTION_DECAY_BACKWARD: OpRow<RetentionDecayBackward> =
    OpRow::<RetentionDecayBackward>::backward("retention_decay_backward", same_shape, launch_backward)
        .kernels(&[Kernel::new(
            "cuda.retention_decay_backward",
            |_, l| on_device(l.at(1)),
            |op, l| Ok(smallvec![retention_decay::backward(l.at(0), l.at(1), (op.lo.get(), op.hi.get()))?]),
        )])
        .per_result(10);

/// Returns 2^(−β).
fn forgotten(beta: &Raw, lo: F64Bits, hi: F64Bits) -> Result<Raw, tch::TchError> {
    beta.f_clamp(lo.get(), hi.get())?.f_mul_scalar_(-LN_2)?.f_exp_()
}

fn launch(op: &RetentionDecay, l: &Launch<'_>) -> Launched {
    Ok(smallvec![forgotten(l.at(0), op.lo, op.hi)?.f_neg_()?.f_add_scalar_(1.0)?])
}

fn launch_backward(op: &RetentionDecayBackward, l: &Launch<'_>) -> Launched {
    let g = l.at(0);
    let beta = l.at(1);
    let slope = forgotten(beta, op.lo, op.hi)?.f_mul_scalar_(LN_2)?.f_mul_(g)?;
    Ok(smallvec![inside(&slope, beta, op.lo, op.hi)?])
}

fn samples(d: &mut SampleRng) -> Vec<Sample> {
    let (a, b) = d.sizes();
    let op = || RetentionDecay { lo: 1.0.into(), hi: 4.0.into() };
    vec![
        sample(op(), [between(&[a], 1.2, 3.8)]),
        sample(op(), [between(&[a, b], 4.2, 6.0)]),
        sample(op(), [between(&[b, a], 0.2, 0.8).transposed()]),
        sample(op(), [between(&[0], 1.2, 3.8)]),
    ]
}

fn lower(op: &RetentionDecay, l: &mut Lower<'_>) -> Lowered {
    let beta = clamped(l, l.at(0), op.lo, op.hi)?;
    let power = l.scaled(beta, -LN_2)?;
    let one = l.number(1.0);
    let forgotten = l.unary(Unary::Exp, power)?;
    only(l.binary(Binary::Sub, one, forgotten)?)
}
