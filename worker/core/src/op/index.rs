//! Rows of a table by 64-bit ids, and positions of any axis.

use super::Op;
use super::infer::{Inferred, axis, float, one, wide, wrong};
use super::lower::{Lower, Lowered, only};
use super::row::{Launch, Launched, OpRow, free, per_operand};
use super::sample::{Draw, Sample, ids, normal, sample};
use super::value::Meta;
use super::vjp::{Grads, Vjp};
use crate::error::{OpError, OpErrorKind};
use enn_common::graph;
use smallvec::smallvec;
use tch::Kind;

/// Embedding, EmbeddingBackward, IndexSelect, IndexSelectBackward.
pub static ROWS: [OpRow; 4] = [
    OpRow::forward("embedding", shape, launch, vjp, |d| {
        let rows = d.size(5, 7);
        let width = d.size(2, 4);
        vec![
            sample(Op::Embedding, [normal(&[rows, width]), ids(&[4, 3], rows)]),
            sample(Op::Embedding, [normal(&[rows, width]).transposed(), ids(&[9], rows)]),
            sample(Op::Embedding, [normal(&[rows, width]), ids(&[0], rows)]),
        ]
    })
    .saves(0b10, 0)
    .flops(free)
    .lowers(|_, l| only(l.emit(graph::Op::Gather { axis: 0 }, &[l.at(0), l.at(1)])?)),
    OpRow::backward("embedding_backward", shape_backward, launch).flops(per_operand::<1>),
    OpRow::forward("index_select", shape_select, launch, vjp_select, samples_select)
        .saves(0b10, 0)
        .flops(free)
        .lowers(lower_select),
    OpRow::backward("index_select_backward", shape_select_backward, launch).flops(per_operand::<1>),
];

/// The row of an operation of this family.
pub(super) fn row(op: &Op) -> &'static OpRow {
    match op {
        Op::Embedding => &ROWS[0],
        Op::EmbeddingBackward { .. } => &ROWS[1],
        Op::IndexSelect { .. } => &ROWS[2],
        Op::IndexSelectBackward { .. } => &ROWS[3],
        _ => unreachable!("an operation of another family"),
    }
}

fn shape(_: &Op, ins: &[&Meta]) -> Inferred {
    float(0, ins[0])?;
    if ins[0].rank() != 2 {
        return Err(wrong(0, ins[0], "a table of shape (rows, width)"));
    }
    if ins[1].kind != Kind::Int64 {
        return Err(OpErrorKind::Kind { operand: 1, found: ins[1].kind, expected: "Int64 ids" });
    }
    let mut shape = ins[1].shape.clone();
    shape.push(ins[0].shape[1]);
    one(ins[0].with_shape(shape))
}

fn shape_backward(op: &Op, ins: &[&Meta]) -> Inferred {
    let Op::EmbeddingBackward { classes } = op else { unreachable!("row of another operation") };
    let width = ins[0].shape.last().copied().unwrap_or(1);
    one(ins[0].with_shape([*classes, width].as_slice()))
}

fn shape_select(op: &Op, ins: &[&Meta]) -> Inferred {
    let Op::IndexSelect { axis: at } = op else { unreachable!("row of another operation") };
    let at = axis(*at, ins[0].rank())?;
    if ins[1].kind != Kind::Int64 || ins[1].rank() != 1 {
        return Err(wrong(1, ins[1], "a list of 64-bit positions"));
    }
    let mut shape = ins[0].shape.clone();
    shape[at] = ins[1].shape[0];
    one(ins[0].with_shape(shape))
}

fn shape_select_backward(op: &Op, ins: &[&Meta]) -> Inferred {
    let Op::IndexSelectBackward { axis, size } = op else { unreachable!("row of another operation") };
    let mut shape = ins[0].shape.clone();
    shape[*axis as usize] = *size;
    one(ins[0].with_shape(shape))
}

fn launch(op: &Op, l: &Launch<'_>) -> Launched {
    use tch::Tensor as T;
    Ok(smallvec![match op {
        Op::Embedding => T::f_embedding(l.at(0), l.at(1), -1, false, false)?,
        Op::EmbeddingBackward { classes } => {
            T::f_embedding_dense_backward(l.at(0), l.at(1), *classes, -1, false)?
        }
        Op::IndexSelect { axis } => l.at(0).f_index_select(*axis, l.at(1))?,
        Op::IndexSelectBackward { axis, size } => added_back(l, *axis, *size)?,
        _ => unreachable!("row of another operation"),
    }])
}

/// Each part of the gradient added to the position that it was taken from. What is taken often is a long sum: kept in f32 at least.
fn added_back(l: &Launch<'_>, axis: i64, size: i64) -> Result<tch::Tensor, tch::TchError> {
    let g = l.at(0);
    let mut shape = g.size();
    shape[axis as usize] = size;
    let kind = wide(g.kind());
    let mut sums = tch::Tensor::f_zeros(shape, (kind, g.device()))?;
    sums.f_index_add_(axis, l.at(1), &g.f_to_kind(kind)?)?.f_to_kind(g.kind())
}

fn vjp(v: &Vjp<'_>) -> Result<Grads, OpError> {
    let op = Op::EmbeddingBackward { classes: v.shape(0)[0] };
    Ok(smallvec![Some(v.call(op, &[v.g()?, v.input(1)?])?), None])
}

fn vjp_select(v: &Vjp<'_>) -> Result<Grads, OpError> {
    let Op::IndexSelect { axis: at } = *v.op() else { unreachable!("row of another operation") };
    let shape = v.shape(0);
    let at = axis(at, shape.len()).map_err(|kind| v.emit.fail(v.op(), kind))?;
    let op = Op::IndexSelectBackward { axis: at as i64, size: shape[at] };
    Ok(smallvec![Some(v.call(op, &[v.g()?, v.input(1)?])?), None])
}

fn lower_select(op: &Op, l: &mut Lower<'_>) -> Lowered {
    let Op::IndexSelect { axis } = op else { unreachable!("row of another operation") };
    let axis = l.axis(l.at(0), *axis);
    only(l.emit(graph::Op::Gather { axis }, &[l.at(0), l.at(1)])?)
}

fn samples_select(d: &mut Draw) -> Vec<Sample> {
    let a = d.size(5, 7);
    let b = d.size(2, 4);
    let c = d.size(3, 5);
    let select = |axis: i64, x, at| sample(Op::IndexSelect { axis }, [x, at]);
    vec![
        // More positions than there are: some come twice.
        select(0, normal(&[a, b]), ids(&[a + 4], a)),
        select(1, normal(&[b, a, c]).transposed(), ids(&[3], a)),
        select(-1, normal(&[c, a]).strided(), ids(&[a], a).strided()),
        select(0, normal(&[a]), ids(&[2 * a], a)),
        select(-2, normal(&[b, a, c]), ids(&[0], a)),
        select(1, normal(&[0, a]), ids(&[4], a)),
    ]
}
