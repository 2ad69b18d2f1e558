//! Rows of a table by 64-bit ids.

use crate::op::prelude::*;
use enn_common::graph::Op as Plain;

attributes! {
    /// Operands: a table (rows, width), and ids of any shape.
    Embedding => EMBEDDING;
    /// The reverse. Operands: the gradient and the ids.
    EmbeddingBackward {
        /// Rows of the table.
        classes: i64,
    } => EMBEDDING_BACKWARD;
}

const EMBEDDING: OpRow<Embedding> = OpRow::forward(
    "embedding",
    shape,
    |_, l| Ok(smallvec![Raw::f_embedding(l.at(0), l.at(1), -1, false, false)?]),
    vjp,
    samples,
)
.saves(0b10, 0)
.free()
.traffic(Traffic::Selected)
.lowers(|_, l| only(l.emit(Plain::Gather { axis: 0 }, l.ins)?));

const EMBEDDING_BACKWARD: OpRow<EmbeddingBackward> =
    OpRow::<EmbeddingBackward>::backward("embedding_backward", shape_backward, |op, l| {
        Ok(smallvec![Raw::f_embedding_dense_backward(l.at(0), l.at(1), op.classes, -1, false)?])
    })
    .per_operand(1);

fn shape(_: &Embedding, ins: &[&Meta]) -> Inferred {
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

fn shape_backward(op: &EmbeddingBackward, ins: &[&Meta]) -> Inferred {
    let width = ins[0].shape.last().copied().unwrap_or(1);
    one(ins[0].with_shape([op.classes, width].as_slice()))
}

fn vjp(_: &Embedding, v: &Vjp<'_>) -> Result<Grads, OpError> {
    let reverse = EmbeddingBackward { classes: v.shape(0)[0] };
    Ok(smallvec![Some(v.call(reverse, &[v.g()?, v.input(1)?])?), None])
}

fn samples(d: &mut SampleRng) -> Vec<Sample> {
    let rows = d.size(5, 7);
    let width = d.size(2, 4);
    vec![
        sample(Embedding, [normal(&[rows, width]), ids(&[4, 3], rows)]),
        sample(Embedding, [normal(&[rows, width]).transposed(), ids(&[9], rows)]),
        sample(Embedding, [normal(&[rows, width]), ids(&[0], rows)]),
    ]
}
