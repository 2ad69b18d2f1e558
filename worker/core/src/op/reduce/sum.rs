//! The sum and the mean along axes, which differ by a factor.

use super::reduced;
use crate::op::prelude::*;
use crate::op::{Expand, Reshape, Scale};
use enn_common::graph::Fold;

attributes! {
    Sum { axes: Axes, keepdim: bool } => SUM;
    Mean { axes: Axes, keepdim: bool } => MEAN;
}

const SUM: OpRow<Sum> = OpRow::<Sum>::forward(
    "sum",
    |op, ins| shape(&op.axes, op.keepdim, ins),
    |op, l| match op.axes.as_slice() {
        // No axes means nothing to reduce here; libtorch would reduce everything.
        [] => Ok(smallvec![l.at(0).shallow_clone()]),
        axes => Ok(smallvec![l.at(0).f_sum_dim_intlist(axes, op.keepdim, None)?]),
    },
    |op, v| vjp(&op.axes, op.keepdim, false, v),
    |d| samples(d, |axes, keepdim| Sum { axes, keepdim }),
)
.class(Class::Full)
.per_operand(1)
.lowers(|op, l| only(l.reduced(Fold::Sum, l.at(0), &op.axes, op.keepdim)?));

const MEAN: OpRow<Mean> = OpRow::<Mean>::forward(
    "mean",
    |op, ins| shape(&op.axes, op.keepdim, ins),
    |op, l| match op.axes.as_slice() {
        [] => Ok(smallvec![l.at(0).shallow_clone()]),
        axes => Ok(smallvec![l.at(0).f_mean_dim(axes, op.keepdim, None)?]),
    },
    |op, v| vjp(&op.axes, op.keepdim, true, v),
    |d| samples(d, |axes, keepdim| Mean { axes, keepdim }),
)
.class(Class::Full)
.per_operand(1)
.lowers(|op, l| only(l.reduced(Fold::Mean, l.at(0), &op.axes, op.keepdim)?));

fn shape(axes: &[i64], keepdim: bool, ins: &[&Meta]) -> Inferred {
    float(0, ins[0])?;
    one(ins[0].with_shape(reduced(&ins[0].shape, axes, keepdim)?))
}

fn vjp(axes: &[i64], keepdim: bool, mean: bool, v: &Vjp<'_>) -> Result<Grads, OpError> {
    let shape = v.shape(0);
    let kept = reduced(&shape, axes, true).map_err(|kind| v.fail(kind))?;
    let mut g: Tensor = v.g()?.clone();
    if !keepdim && g.shape() != kept.as_slice() {
        g = v.call(Reshape { shape: kept.clone() }, &[&g])?;
    }
    if mean {
        let count = shape.iter().zip(&kept).filter(|(full, one)| full != one).map(|(full, _)| *full).product::<i64>();
        g = v.call(Scale { by: (1.0 / count.max(1) as f64).into() }, &[&g])?;
    }
    if g.shape() != shape.as_slice() {
        g = v.call(Expand { shape }, &[&g])?;
    }
    Ok(grad(g))
}

fn samples<A: Into<crate::op::Op>>(d: &mut SampleRng, op: fn(Axes, bool) -> A) -> Vec<Sample> {
    let (a, b) = d.sizes();
    let c = d.size(2, 3);
    vec![
        sample(op(smallvec![1], false), [normal(&[a, b, c])]),
        sample(op(smallvec![0, -1], true), [normal(&[a, b, c]).transposed()]),
        sample(op(smallvec![0, 1], false), [normal(&[b, a]).strided()]),
        sample(op(smallvec![0], false), [normal(&[a, 0, c])]),
    ]
}
