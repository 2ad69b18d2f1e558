//! Parts of given sizes along an axis, as views.

use super::{MANY, at_axis};
use crate::op::Cat;
use crate::op::prelude::*;

attributes! {
    Split { axis: i64, sizes: Axes } => SPLIT;
}

const SPLIT: OpRow<Split> = OpRow::<Split>::forward(
    "split",
    shape,
    |op, l| Ok(l.at(0).f_split_with_sizes(op.sizes.as_slice(), op.axis)?.into()),
    vjp,
    samples,
)
.differentiable(|op| op.sizes.len())
.view()
.free()
.lowers(lower);

fn shape(op: &Split, ins: &[&Meta]) -> Inferred {
    let at = axis(op.axis, ins[0].rank())?;
    if op.sizes.iter().sum::<i64>() != ins[0].shape[at] || op.sizes.iter().any(|s| *s < 0) {
        return Err(mismatch(&ins[0].shape, &op.sizes, "parts that sum to the axis"));
    }
    Ok(op.sizes.iter().map(|size| ins[0].with_size(at, *size)).collect())
}

fn vjp(op: &Split, v: &Vjp<'_>) -> Result<Grads, OpError> {
    let meta = v.meta(0);
    let axis = at_axis(v, op.axis, meta.rank())?;
    let mut parts: SmallVec<[Tensor; 4]> = SmallVec::new();
    for (i, size) in op.sizes.iter().enumerate() {
        parts.push(match v.gout(i) {
            Some(g) => g.clone(),
            None => v.zeros(&meta.with_size(axis as usize, *size))?,
        });
    }
    let refs: SmallVec<[&Tensor; 4]> = parts.iter().collect();
    Ok(grad(v.call(Cat { axis }, &refs)?))
}

fn samples(d: &mut SampleRng) -> Vec<Sample> {
    let (a, b) = d.sizes();
    vec![
        sample(Split { axis: -1, sizes: smallvec![2, b, 1] }, [normal(&[a, b + 3])]),
        sample(Split { axis: 0, sizes: smallvec![a, 0] }, [normal(&[a, b]).transposed()]),
        sample(Split { axis: 1, sizes: smallvec![1; MANY] }, [normal(&[a, MANY as i64])]),
        sample(Split { axis: 1, sizes: smallvec![2, b - 2] }, [normal(&[0, b])]),
        sample(Split { axis: 0, sizes: smallvec![0, 0] }, [normal(&[0, b])]),
    ]
}

fn lower(op: &Split, l: &mut Lower<'_>) -> Lowered {
    let x = l.at(0);
    let axis = l.axis(x, op.axis);
    let mut start = 0;
    let part = |size: &i64| {
        let part = l.slice(x, axis, start, size.unsigned_abs());
        start += size.unsigned_abs();
        part
    };
    op.sizes.iter().map(part).collect()
}
