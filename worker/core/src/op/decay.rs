//! How much of its state a head of retention keeps from token to token: λ = 1 − 2^(−β), with β kept between two bounds.

use super::Op;
use super::cuda;
use super::elementwise::{clamped, inside};
use super::infer::{Inferred, float, one};
use super::lower::{Lower, Lowered, only};
use super::row::{Launch, Launched, OpRow, per_result};
use super::sample::{between, sample};
use super::value::Meta;
use super::vjp::grad;
use enn_common::graph::{Binary, Unary};
use smallvec::smallvec;
use std::f64::consts::LN_2;
use tch::Tensor;

/// RetentionDecay, RetentionDecayBackward.
///
/// Operands: β; the gradient of λ and β. Where β is out of its bounds no gradient flows.
pub static ROWS: [OpRow; 2] = [
    OpRow::forward(
        "retention_decay",
        same_shape,
        launch,
        |v| {
            let Op::RetentionDecay { lo, hi } = *v.op() else { unreachable!("row of another operation") };
            Ok(grad(v.call(Op::RetentionDecayBackward { lo, hi }, &[v.g()?, v.input(0)?])?))
        },
        |d| {
            let a = d.size(2, 4);
            let b = d.size(5, 7);
            let op = Op::RetentionDecay { lo: 1.0.into(), hi: 4.0.into() };
            vec![
                sample(op.clone(), [between(&[a], 1.2, 3.8)]),
                sample(op.clone(), [between(&[a, b], 4.2, 6.0)]),
                sample(op.clone(), [between(&[b, a], 0.2, 0.8).transposed()]),
                sample(op, [between(&[0], 1.2, 3.8)]),
            ]
        },
    )
    .saves(1, 0)
    .kernels(&[cuda::RETENTION_DECAY])
    .flops(per_result::<5>)
    .lowers(lower),
    OpRow::backward("retention_decay_backward", same_shape, launch_backward)
        .kernels(&[cuda::RETENTION_DECAY_BACKWARD])
        .flops(per_result::<10>),
];

/// The row of either operation.
pub(super) fn row(op: &Op) -> &'static OpRow {
    &ROWS[usize::from(matches!(op, Op::RetentionDecayBackward { .. }))]
}

fn same_shape(_: &Op, ins: &[&Meta]) -> Inferred {
    float(0, ins[0])?;
    one(ins[0].clone())
}

pub(super) fn bounds(op: &Op) -> (f64, f64) {
    let (Op::RetentionDecay { lo, hi } | Op::RetentionDecayBackward { lo, hi }) = op else {
        unreachable!("row of another operation")
    };
    (lo.get(), hi.get())
}

/// 2^(−β).
fn forgotten(beta: &Tensor, (lo, hi): (f64, f64)) -> Result<Tensor, tch::TchError> {
    beta.f_clamp(lo, hi)?.f_mul_scalar_(-LN_2)?.f_exp_()
}

fn launch(op: &Op, l: &Launch<'_>) -> Launched {
    Ok(smallvec![forgotten(l.at(0), bounds(op))?.f_neg_()?.f_add_scalar_(1.0)?])
}

fn launch_backward(op: &Op, l: &Launch<'_>) -> Launched {
    let bounds = bounds(op);
    let g = l.at(0);
    let beta = l.at(1);
    let slope = forgotten(beta, bounds)?.f_mul_scalar_(LN_2)?.f_mul_(g)?;
    Ok(smallvec![inside(&slope, beta, bounds)?])
}

fn lower(op: &Op, l: &mut Lower<'_>) -> Lowered {
    let beta = clamped(l, l.at(0), bounds(op))?;
    let power = l.scaled(beta, -LN_2)?;
    let one = l.number(1.0);
    let forgotten = l.unary(Unary::Exp, power)?;
    only(l.binary(Binary::Sub, one, forgotten)?)
}
