//! Softmax and log-softmax along one axis.

use super::Op;
use super::infer::{Inferred, axis, float, one};
use super::lower::{Lower, Lowered, only};
use super::row::{Launch, Launched, OpRow, per_result};
use super::sample::{Draw, Sample, normal, sample};
use super::value::Meta;
use super::vjp::{Grads, Vjp, grad};
use crate::error::OpError;
use enn_common::graph::{Binary, Fold, Op as Plain, Unary};
use smallvec::smallvec;

/// Softmax, SoftmaxBackward, LogSoftmax, LogSoftmaxBackward.
pub static ROWS: [OpRow; 4] = [
    OpRow::forward("softmax", shape, launch, vjp, |d| samples(d, |axis| Op::Softmax { axis }))
        .saves(0, 1)
        .flops(per_result::<5>)
        .lowers(lower),
    OpRow::backward("softmax_backward", |_, ins| one(ins[0].clone()), launch).flops(per_result::<4>),
    OpRow::forward("log_softmax", shape, launch, vjp, |d| samples(d, |axis| Op::LogSoftmax { axis }))
        .saves(0, 1)
        .flops(per_result::<5>)
        .lowers(lower_log),
    OpRow::backward("log_softmax_backward", |_, ins| one(ins[0].clone()), launch).flops(per_result::<4>),
];

/// The row of an operation of this family.
pub(super) fn row(op: &Op) -> &'static OpRow {
    match op {
        Op::Softmax { .. } => &ROWS[0],
        Op::SoftmaxBackward { .. } => &ROWS[1],
        Op::LogSoftmax { .. } => &ROWS[2],
        Op::LogSoftmaxBackward { .. } => &ROWS[3],
        _ => unreachable!("an operation of another family"),
    }
}

fn shape(op: &Op, ins: &[&Meta]) -> Inferred {
    let (Op::Softmax { axis: at } | Op::LogSoftmax { axis: at }) = op else { unreachable!("row of another operation") };
    float(0, ins[0])?;
    axis(*at, ins[0].rank())?;
    one(ins[0].clone())
}

fn launch(op: &Op, l: &Launch<'_>) -> Launched {
    use tch::Tensor as T;
    let x = l.at(0);
    Ok(smallvec![match op {
        Op::Softmax { axis } => x.f_internal_softmax(*axis, false)?,
        Op::LogSoftmax { axis } => x.f_internal_log_softmax(*axis, false)?,
        Op::SoftmaxBackward { axis } => T::f_internal_softmax_backward_data(x, l.at(1), *axis, x.kind())?,
        Op::LogSoftmaxBackward { axis } => T::f_internal_log_softmax_backward_data(x, l.at(1), *axis, x.kind())?,
        _ => unreachable!("row of another operation"),
    }])
}

fn vjp(v: &Vjp<'_>) -> Result<Grads, OpError> {
    let op = match *v.op() {
        Op::Softmax { axis } => Op::SoftmaxBackward { axis },
        Op::LogSoftmax { axis } => Op::LogSoftmaxBackward { axis },
        _ => unreachable!("row of another operation"),
    };
    Ok(grad(v.call(op, &[v.g()?, v.output(0)?])?))
}

fn samples(d: &mut Draw, op: fn(i64) -> Op) -> Vec<Sample> {
    let a = d.size(2, 4);
    let b = d.size(5, 7);
    vec![
        sample(op(-1), [normal(&[a, b])]),
        sample(op(1), [normal(&[a, b, 3]).transposed()]),
        sample(op(0), [normal(&[b, a]).strided()]),
        sample(op(-1), [normal(&[0, b])]),
    ]
}

fn lower(op: &Op, l: &mut Lower<'_>) -> Lowered {
    let Op::Softmax { axis } = op else { unreachable!("row of another operation") };
    let x = l.at(0);
    let axis = l.axis(x, *axis);
    let last = l.rank(x) - 1;
    if axis == last {
        return only(l.emit(Plain::Softmax, &[x])?);
    }
    let turned = l.swapped(x, axis, last)?;
    let shares = l.emit(Plain::Softmax, &[turned])?;
    only(l.swapped(shares, axis, last)?)
}

/// x − largest − ln Σ exp(x − largest).
fn lower_log(op: &Op, l: &mut Lower<'_>) -> Lowered {
    let Op::LogSoftmax { axis } = op else { unreachable!("row of another operation") };
    let x = l.at(0);
    let most = l.reduced(Fold::Max, x, &[*axis], true)?;
    let below = l.binary(Binary::Sub, x, most)?;
    let parts = l.unary(Unary::Exp, below)?;
    let sum = l.reduced(Fold::Sum, parts, &[*axis], true)?;
    let sum = l.unary(Unary::Log, sum)?;
    only(l.binary(Binary::Sub, below, sum)?)
}
