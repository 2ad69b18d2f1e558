//! The batched matrix product, with broadcasting.

use super::rows;
use crate::op::Reshape;
use crate::op::prelude::*;
use enn_common::graph::{Id, Op as Plain};

attributes! {
    MatMul {
        /// Whether the first operand is transposed.
        ta: bool,
        /// Whether the second operand is transposed.
        tb: bool,
    } => MAT_MUL;
}

const MAT_MUL: OpRow<MatMul> = OpRow::<MatMul>::forward("matmul", shape, launch, vjp, samples)
    .saves(0b11, 0)
    .product()
    .class(Class::Low)
    .flops(|op, ins, outs| (2 * outs[0].numel() * matrix(ins[0], op.ta).1).max(0) as u64)
    .lowers(lower);

/// The last two sizes as the product sees them.
fn matrix(meta: &Meta, transposed: bool) -> (i64, i64) {
    let rank = meta.rank();
    let rows = meta.shape[rank - 2];
    let columns = meta.shape[rank - 1];
    if transposed { (columns, rows) } else { (rows, columns) }
}

fn shape(op: &MatMul, ins: &[&Meta]) -> Inferred {
    float(0, ins[0])?;
    same_kind(ins)?;
    for (i, meta) in ins.iter().enumerate() {
        if meta.rank() < 2 {
            return Err(wrong(i, meta, "at least two axes"));
        }
    }
    let (rows, inner) = matrix(ins[0], op.ta);
    let (inner_b, columns) = matrix(ins[1], op.tb);
    if inner != inner_b {
        return Err(mismatch(&ins[0].shape, &ins[1].shape, "equal inner sizes"));
    }
    let batch = |meta: &Meta| Shape::from_slice(&meta.shape[..meta.rank() - 2]);
    let mut shape = broadcast(&batch(ins[0]), &batch(ins[1]))?;
    shape.extend([rows, columns]);
    one(ins[0].with_shape(shape))
}

fn launch(op: &MatMul, l: &Launch<'_>) -> Launched {
    let a = l.at(0);
    let b = l.at(1);
    Ok(smallvec![match (op.ta, op.tb) {
        (false, false) => a.f_matmul(b)?,
        (true, false) => a.f_transpose(-2, -1)?.f_matmul(b)?,
        (false, true) => a.f_matmul(&b.f_transpose(-2, -1)?)?,
        (true, true) => a.f_transpose(-2, -1)?.f_matmul(&b.f_transpose(-2, -1)?)?,
    }])
}

fn vjp(op: &MatMul, v: &Vjp<'_>) -> Result<Grads, OpError> {
    let MatMul { ta, tb } = *op;
    let g = v.g()?;
    let a = v.input(0)?;
    let b = v.input(1)?;
    let product = |ta, tb, x: &Tensor, y: &Tensor| v.call(MatMul { ta, tb }, &[x, y]);
    let mut grads: Grads = smallvec![None, None];
    if v.needs(0) {
        let ga = if ta { product(tb, true, b, g)? } else { product(false, !tb, g, b)? };
        grads[0] = Some(v.unbroadcast(ga, a.shape())?);
    }
    if v.needs(1) {
        let gb = if !ta && b.meta().rank() == 2 && a.meta().rank() > 2 {
            // A matrix shared by a batch: one product over all rows instead of a batch of products and a sum.
            let rows = |t: &Tensor| v.call(Reshape { shape: smallvec![rows(t.meta()), t.dim(-1)] }, &[t]);
            let a = rows(a)?;
            let g = rows(g)?;
            if tb { product(true, false, &g, &a)? } else { product(true, false, &a, &g)? }
        } else if tb {
            product(true, ta, g, a)?
        } else {
            product(!ta, false, a, g)?
        };
        grads[1] = Some(v.unbroadcast(gb, b.shape())?);
    }
    Ok(grads)
}

fn samples(d: &mut SampleRng) -> Vec<Sample> {
    let (a, b) = d.sizes();
    let c = d.size(3, 6);
    let op = |ta, tb| MatMul { ta, tb };
    vec![
        sample(op(false, false), [normal(&[a, b]), normal(&[b, c])]),
        sample(op(true, false), [normal(&[2, b, a]), normal(&[2, b, c]).strided()]),
        sample(op(false, true), [normal(&[3, 1, a, b]).transposed(), normal(&[2, c, b])]),
        sample(op(true, true), [normal(&[b, a]), normal(&[2, c, b])]),
        sample(op(false, false), [normal(&[2, 3, a, b]), normal(&[b, c])]),
        sample(op(false, true), [normal(&[2, a, b]).strided(), normal(&[c, b])]),
        sample(op(false, false), [normal(&[a, 0]), normal(&[0, c])]),
        sample(op(false, false), [normal(&[0, a, b]), normal(&[b, c])]),
        sample(op(false, false), [normal(&[2, a, 0]), normal(&[0, c])]),
        sample(op(false, true), [normal(&[2, a, b]), normal(&[0, b])]),
    ]
}

fn lower(op: &MatMul, l: &mut Lower<'_>) -> Lowered {
    let a = l.at(0);
    let b = l.at(1);
    let mut turned = |x: Id, turn: bool| {
        let rank = l.rank(x);
        if turn { l.swapped(x, rank - 2, rank - 1) } else { Ok(x) }
    };
    let a = turned(a, op.ta)?;
    let b = turned(b, op.tb)?;
    only(l.emit(Plain::MatMul, &[a, b])?)
}
