//! The sum over what broadcasting repeated.

use crate::op::Expand;
use crate::op::prelude::*;
use enn_common::graph::Fold;

attributes! {
    SumTo { shape: Axes } => SUM_TO;
}

const SUM_TO: OpRow<SumTo> = OpRow::<SumTo>::forward(
    "sum_to",
    shape,
    |op, l| Ok(smallvec![l.at(0).f_sum_to_size(op.shape.as_slice())?]),
    |_, v| Ok(grad(v.call(Expand { shape: v.shape(0) }, &[v.g()?])?)),
    samples,
)
.class(Class::Full)
.per_operand(1)
.lowers(lower);

fn shape(op: &SumTo, ins: &[&Meta]) -> Inferred {
    if broadcast(&ins[0].shape, &op.shape)? != ins[0].shape {
        return Err(mismatch(&ins[0].shape, &op.shape, "a target that broadcasts to the operand"));
    }
    one(ins[0].with_shape(op.shape.clone()))
}

fn samples(d: &mut SampleRng) -> Vec<Sample> {
    let (a, b) = d.sizes();
    vec![
        sample(SumTo { shape: smallvec![b] }, [normal(&[a, b])]),
        sample(SumTo { shape: smallvec![a, 1, b] }, [normal(&[3, a, 2, b]).transposed()]),
        sample(SumTo { shape: smallvec![1, b] }, [normal(&[a, 0, b])]),
        sample(SumTo { shape: smallvec![1, 0] }, [normal(&[a, 0])]),
    ]
}

fn lower(_: &SumTo, l: &mut Lower<'_>) -> Lowered {
    let x = l.at(0);
    let from = l.shape(x);
    let to = l.outs[0].clone();
    let new = from.len() - to.len();
    let gone = (0..from.len()).filter(|&i| i < new || (to[i - new] != from[i]));
    let gone: Vec<i64> = gone.map(|i| i as i64).collect();
    let sum = l.reduced(Fold::Sum, x, &gone, false)?;
    only(l.reshape(sum, &to)?)
}
