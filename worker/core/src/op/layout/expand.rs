//! A tensor repeated to a larger shape, as a view.

use crate::op::prelude::*;

attributes! {
    Expand { shape: Axes } => EXPAND;
}

const EXPAND: OpRow<Expand> = OpRow::<Expand>::forward(
    "expand",
    shape,
    |op, l| Ok(smallvec![l.at(0).f_expand(op.shape.as_slice(), false)?]),
    |_, v| Ok(grad(v.unbroadcast(v.g()?.clone(), &v.shape(0))?)),
    samples,
)
.view()
.free()
.lowers(|_, l| {
    let out = l.outs[0].clone();
    only(l.expand(l.at(0), &out)?)
});

fn shape(op: &Expand, ins: &[&Meta]) -> Inferred {
    if broadcast(&ins[0].shape, &op.shape)? != op.shape {
        return Err(mismatch(&ins[0].shape, &op.shape, "a target the operand broadcasts to"));
    }
    one(ins[0].with_shape(op.shape.clone()))
}

fn samples(d: &mut SampleRng) -> Vec<Sample> {
    let (a, b) = d.sizes();
    vec![
        sample(Expand { shape: smallvec![3, a, b] }, [normal(&[a, 1])]),
        sample(Expand { shape: smallvec![a, b] }, [normal(&[])]),
        sample(Expand { shape: smallvec![2, b, 3, a] }, [normal(&[b, 1, a]).transposed()]),
        sample(Expand { shape: smallvec![a, 3, b] }, [normal(&[1, b]).strided()]),
        sample(Expand { shape: smallvec![a, 0] }, [normal(&[a, 1])]),
        sample(Expand { shape: smallvec![0, a, 0] }, [normal(&[1, 0])]),
    ]
}
