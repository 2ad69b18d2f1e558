//! Tensors joined along an axis.

use super::{at_axis, many};
use crate::op::Narrow;
use crate::op::prelude::*;
use enn_common::graph::{Dim, Id};

attributes! {
    Cat { axis: i64 } => CAT;
}

const CAT: OpRow<Cat> =
    OpRow::<Cat>::forward("cat", shape, |op, l| Ok(smallvec![Raw::f_cat(l.ins, op.axis)?]), vjp, samples)
        .class(Class::Widest)
        .free()
        .lowers(lower);

fn shape(op: &Cat, ins: &[&Meta]) -> Inferred {
    let at = axis(op.axis, ins[0].rank())?;
    same_kind(ins)?;
    let mut shape = ins[0].shape.clone();
    for (i, meta) in ins.iter().enumerate().skip(1) {
        let fits = meta.rank() == shape.len() && (0..shape.len()).all(|a| a == at || meta.shape[a] == shape[a]);
        if !fits {
            return Err(wrong(i, meta, "operand 0's shape except along the joined axis"));
        }
        shape[at] += meta.shape[at];
    }
    one(ins[0].with_shape(shape))
}

fn vjp(op: &Cat, v: &Vjp<'_>) -> Result<Grads, OpError> {
    let g = v.g()?;
    let axis = at_axis(v, op.axis, g.shape().len())?;
    let mut grads: Grads = smallvec![None; v.arity()];
    let mut start = 0;
    for (i, slot) in grads.iter_mut().enumerate() {
        let len = v.shape(i)[axis as usize];
        if v.needs(i) {
            *slot = Some(v.call(Narrow { axis, start, len }, &[g])?);
        }
        start += len;
    }
    Ok(grads)
}

fn samples(d: &mut SampleRng) -> Vec<Sample> {
    let (a, b) = d.sizes();
    vec![
        sample(Cat { axis: 1 }, [normal(&[a, b]), normal(&[a, 2]), normal(&[a, 0])]),
        sample(Cat { axis: -3 }, [normal(&[a, b, 2]).transposed(), normal(&[1, b, 2]).strided()]),
        sample(Cat { axis: 1 }, many(|| normal(&[a, 1]))),
        sample(Cat { axis: 0 }, [normal(&[0, b]), normal(&[0, b])]),
    ]
}

fn lower(op: &Cat, l: &mut Lower<'_>) -> Lowered {
    let x = l.at(0);
    // An operand without elements adds nothing, and not every runtime takes one.
    let axis = l.axis(x, op.axis);
    let full = |id: &Id| l.graph.value(*id).shape[axis] != Dim::Fixed(0);
    let parts: Vec<Id> = l.ins.iter().copied().filter(full).collect();
    only(if parts.is_empty() { x } else { l.concat(&parts, axis)? })
}
