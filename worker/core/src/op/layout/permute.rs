//! Axes in another order.

use crate::op::prelude::*;

attributes! {
    Permute { axes: Axes } => PERMUTE;
}

const PERMUTE: OpRow<Permute> = OpRow::<Permute>::forward(
    "permute",
    shape,
    |op, l| Ok(smallvec![l.at(0).f_permute(op.axes.as_slice())?]),
    vjp,
    samples,
)
.view()
.free()
.lowers(lower);

fn shape(op: &Permute, ins: &[&Meta]) -> Inferred {
    let order = order(&op.axes, ins[0].rank())?;
    one(ins[0].with_shape(order.iter().map(|a| ins[0].shape[*a as usize]).collect::<Shape>()))
}

fn order(axes: &[i64], rank: usize) -> Result<Axes, OpErrorKind> {
    let order = axes.iter().map(|a| axis(*a, rank).map(|a| a as i64)).collect::<Result<Axes, _>>()?;
    let mut sorted = order.clone();
    sorted.sort_unstable();
    if sorted.iter().copied().eq(0..rank as i64) {
        return Ok(order);
    }
    Err(mismatch(axes, &[rank as i64], "each axis exactly once"))
}

fn vjp(op: &Permute, v: &Vjp<'_>) -> Result<Grads, OpError> {
    let order = order(&op.axes, op.axes.len()).map_err(|kind| v.fail(kind))?;
    let mut inverse: Axes = smallvec![0; order.len()];
    for (to, from) in order.iter().enumerate() {
        inverse[*from as usize] = to as i64;
    }
    Ok(grad(v.call(Permute { axes: inverse }, &[v.g()?])?))
}

fn samples(d: &mut SampleRng) -> Vec<Sample> {
    let (a, b) = d.sizes();
    vec![
        sample(Permute { axes: smallvec![2, 0, 1] }, [normal(&[a, b, 3])]),
        sample(Permute { axes: smallvec![-1, 0] }, [normal(&[a, b]).strided()]),
        sample(Permute { axes: smallvec![1, 2, 0] }, [normal(&[a, 0, b])]),
    ]
}

fn lower(op: &Permute, l: &mut Lower<'_>) -> Lowered {
    let x = l.at(0);
    let axes: Vec<usize> = op.axes.iter().map(|axis| l.axis(x, *axis)).collect();
    only(l.permute(x, &axes)?)
}
