//! Rows of a table by 64-bit ids.

use super::Op;
use super::infer::{Inferred, float, one, wrong};
use super::lower::only;
use super::row::{Launch, Launched, OpRow, free, per_operand};
use super::sample::{ids, normal, sample};
use super::value::Meta;
use super::vjp::{Grads, Vjp};
use crate::error::{OpError, OpErrorKind};
use enn_common::graph;
use smallvec::smallvec;
use tch::Kind;

/// Embedding, EmbeddingBackward.
pub static ROWS: [OpRow; 2] = [
    OpRow::forward("embedding", shape, launch, vjp, |d| {
        let (rows, width) = (d.size(5, 7), d.size(2, 4));
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
];

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

fn launch(op: &Op, l: &Launch<'_>) -> Launched {
    use tch::Tensor as T;
    Ok(smallvec![match op {
        Op::Embedding => T::f_embedding(l.at(0), l.at(1), -1, false, false)?,
        Op::EmbeddingBackward { classes } => {
            T::f_embedding_dense_backward(l.at(0), l.at(1), *classes, -1, false)?
        }
        _ => unreachable!("row of another operation"),
    }])
}

fn vjp(v: &Vjp<'_>) -> Result<Grads, OpError> {
    let op = Op::EmbeddingBackward { classes: v.shape(0)[0] };
    Ok(smallvec![Some(v.call(op, &[v.g()?, v.input(1)?])?), None])
}
