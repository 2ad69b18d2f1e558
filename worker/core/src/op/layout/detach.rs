//! The operand, through which no gradient flows.

use crate::op::prelude::*;

attributes! {
    Detach => DETACH;
}

const DETACH: OpRow<Detach> =
    OpRow::backward("detach", |_, ins| one(ins[0].clone()), |_, l| Ok(smallvec![l.at(0).shallow_clone()]))
        .samples(samples)
        .view()
        .free()
        .lowers(itself);

fn samples(d: &mut SampleRng) -> Vec<Sample> {
    let (a, b) = d.sizes();
    let shapes = [normal(&[a, b, 3]), normal(&[b, a]).transposed(), normal(&[0, b])];
    shapes.into_iter().map(|x| sample(Detach, [x])).collect()
}
