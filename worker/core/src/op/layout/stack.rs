//! Tensors of one shape joined along a new axis.

use super::{at_axis, many};
use crate::op::prelude::*;
use crate::op::{Narrow, Reshape};
use enn_common::graph::{Dim, Id};

attributes! {
    Stack { axis: i64 } => STACK;
}

const STACK: OpRow<Stack> =
    OpRow::<Stack>::forward("stack", shape, |op, l| Ok(smallvec![Raw::f_stack(l.ins, op.axis)?]), vjp, samples)
        .class(Class::Widest)
        .free()
        .lowers(lower);

fn shape(op: &Stack, ins: &[&Meta]) -> Inferred {
    let at = axis(op.axis, ins[0].rank() + 1)?;
    same_kind(ins)?;
    if let Some((i, meta)) = ins.iter().enumerate().find(|(_, m)| m.shape != ins[0].shape) {
        return Err(wrong(i, meta, "operand 0's shape"));
    }
    let mut shape = ins[0].shape.clone();
    shape.insert(at, ins.len() as i64);
    one(ins[0].with_shape(shape))
}

fn vjp(op: &Stack, v: &Vjp<'_>) -> Result<Grads, OpError> {
    let g = v.g()?;
    let axis = at_axis(v, op.axis, g.shape().len())?;
    let mut grads: Grads = smallvec![None; v.arity()];
    for (i, slot) in grads.iter_mut().enumerate() {
        if v.needs(i) {
            let part = v.call(Narrow { axis, start: i as i64, len: 1 }, &[g])?;
            *slot = Some(v.call(Reshape { shape: v.shape(i) }, &[&part])?);
        }
    }
    Ok(grads)
}

fn samples(d: &mut SampleRng) -> Vec<Sample> {
    let (a, b) = d.sizes();
    vec![
        sample(Stack { axis: 1 }, [normal(&[a, b]), normal(&[a, b]).transposed()]),
        sample(Stack { axis: -1 }, [normal(&[a]), normal(&[a]), normal(&[a]).strided()]),
        sample(Stack { axis: 0 }, many(|| normal(&[a]))),
        sample(Stack { axis: -2 }, [normal(&[a, 0]), normal(&[a, 0])]),
    ]
}

fn lower(op: &Stack, l: &mut Lower<'_>) -> Lowered {
    let mut thin = l.outs[0].clone();
    let axis = if op.axis < 0 { thin.len() - op.axis.unsigned_abs() as usize } else { op.axis as usize };
    thin[axis] = Dim::ONE;
    let parts: Vec<Id> = l.ins.iter().map(|id| l.reshape(*id, &thin)).collect::<Result<_, _>>()?;
    only(l.concat(&parts, axis)?)
}
