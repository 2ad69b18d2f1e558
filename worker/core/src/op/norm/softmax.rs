//! Softmax along one axis, and its logarithm: x − largest − ln Σ exp(x − largest). They share shape, samples and the form of the reverse.

use crate::op::prelude::*;
use enn_common::graph::{Binary, Fold, Op as Plain, Unary};

attributes! {
    Softmax { axis: i64 } => SOFTMAX;
    /// The reverse. Operands: the gradient and the result.
    SoftmaxBackward { axis: i64 } => SOFTMAX_BACKWARD;
    LogSoftmax { axis: i64 } => LOG_SOFTMAX;
    /// The reverse. Operands: the gradient and the result.
    LogSoftmaxBackward { axis: i64 } => LOG_SOFTMAX_BACKWARD;
}

const SOFTMAX: OpRow<Softmax> = OpRow::<Softmax>::forward(
    "softmax",
    |op, ins| shape(op.axis, ins),
    |op, l| Ok(smallvec![l.at(0).f_internal_softmax(op.axis, false)?]),
    |op, v| Ok(grad(v.call(SoftmaxBackward { axis: op.axis }, &[v.g()?, v.output(0)?])?)),
    |d| samples(d, |axis| Softmax { axis }),
)
.saves(0, 1)
.class(Class::Full)
.per_result(5)
.lowers(lower);

const SOFTMAX_BACKWARD: OpRow<SoftmaxBackward> = OpRow::<SoftmaxBackward>::backward(
    "softmax_backward",
    |_, ins| one(ins[0].clone()),
    |op, l| Ok(smallvec![Raw::f_internal_softmax_backward_data(l.at(0), l.at(1), op.axis, l.at(0).kind())?]),
)
.per_result(4);

const LOG_SOFTMAX: OpRow<LogSoftmax> = OpRow::<LogSoftmax>::forward(
    "log_softmax",
    |op, ins| shape(op.axis, ins),
    |op, l| Ok(smallvec![l.at(0).f_internal_log_softmax(op.axis, false)?]),
    |op, v| Ok(grad(v.call(LogSoftmaxBackward { axis: op.axis }, &[v.g()?, v.output(0)?])?)),
    |d| samples(d, |axis| LogSoftmax { axis }),
)
.saves(0, 1)
.class(Class::Full)
.per_result(5)
.lowers(lower_log);

const LOG_SOFTMAX_BACKWARD: OpRow<LogSoftmaxBackward> = OpRow::<LogSoftmaxBackward>::backward(
    "log_softmax_backward",
    |_, ins| one(ins[0].clone()),
    |op, l| Ok(smallvec![Raw::f_internal_log_softmax_backward_data(l.at(0), l.at(1), op.axis, l.at(0).kind())?]),
)
.per_result(4);

/// The shape rule of functions along an axis.
fn shape(at: i64, ins: &[&Meta]) -> Inferred {
    float(0, ins[0])?;
    axis(at, ins[0].rank())?;
    one(ins[0].clone())
}

/// Example calls of functions along an axis.
fn samples<A: Into<crate::op::Op>>(d: &mut SampleRng, op: fn(i64) -> A) -> Vec<Sample> {
    let (a, b) = d.sizes();
    vec![
        sample(op(-1), [normal(&[a, b])]),
        sample(op(1), [normal(&[a, b, 3]).transposed()]),
        sample(op(0), [normal(&[b, a]).strided()]),
        sample(op(-1), [normal(&[0, b])]),
    ]
}

fn lower(op: &Softmax, l: &mut Lower<'_>) -> Lowered {
    let x = l.at(0);
    let axis = l.axis(x, op.axis);
    let last = l.rank(x) - 1;
    if axis == last {
        return only(l.emit(Plain::Softmax, &[x])?);
    }
    let turned = l.swapped(x, axis, last)?;
    let shares = l.emit(Plain::Softmax, &[turned])?;
    only(l.swapped(shares, axis, last)?)
}

fn lower_log(op: &LogSoftmax, l: &mut Lower<'_>) -> Lowered {
    let x = l.at(0);
    let most = l.reduced(Fold::Max, x, &[op.axis], true)?;
    let below = l.binary(Binary::Sub, x, most)?;
    let parts = l.unary(Unary::Exp, below)?;
    let sum = l.reduced(Fold::Sum, parts, &[op.axis], true)?;
    let sum = l.unary(Unary::Log, sum)?;
    only(l.binary(Binary::Sub, below, sum)?)
}
