//! An axis backwards.

use crate::op::prelude::*;

attributes! {
    Flip { axis: i64 } => FLIP;
}

const FLIP: OpRow<Flip> = OpRow::<Flip>::forward(
    "flip",
    |op, ins| {
        axis(op.axis, ins[0].rank())?;
        one(ins[0].clone())
    },
    |op, l| Ok(smallvec![l.at(0).f_flip(op.axis)?]),
    |op, v| Ok(grad(v.call(op.clone(), &[v.g()?])?)),
    samples,
)
.free()
.lowers(|op, l| {
    let axis = l.axis(l.at(0), op.axis);
    only(l.flipped(l.at(0), axis)?)
});

fn samples(d: &mut SampleRng) -> Vec<Sample> {
    let (a, b) = d.sizes();
    vec![
        sample(Flip { axis: 1 }, [normal(&[a, b, 3])]),
        sample(Flip { axis: -1 }, [normal(&[a, b]).strided()]),
        sample(Flip { axis: 0 }, [normal(&[0, b])]),
    ]
}
