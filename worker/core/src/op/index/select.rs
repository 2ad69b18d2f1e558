//! Positions of an axis, in any order, some of them several times.

use crate::op::prelude::*;
use enn_common::graph::Op as Plain;

attributes! {
    /// Operands: x, and a list of 64-bit positions.
    IndexSelect { axis: i64 } => INDEX_SELECT;
    /// The reverse. Operands: the gradient and the positions.
    IndexSelectBackward {
        /// Counted from the front.
        axis: i64,
        /// Size of the axis of x.
        size: i64,
    } => INDEX_SELECT_BACKWARD;
}

const INDEX_SELECT: OpRow<IndexSelect> = OpRow::<IndexSelect>::forward(
    "index_select",
    shape,
    |op, l| Ok(smallvec![l.at(0).f_index_select(op.axis, l.at(1))?]),
    vjp,
    samples,
)
.saves(0b10, 0)
.free()
.traffic(Traffic::Selected)
.lowers(|op, l| {
    let axis = l.axis(l.at(0), op.axis);
    only(l.emit(Plain::Gather { axis }, l.ins)?)
});

const INDEX_SELECT_BACKWARD: OpRow<IndexSelectBackward> = OpRow::<IndexSelectBackward>::backward(
    "index_select_backward",
    |op, ins| one(ins[0].with_size(op.axis as usize, op.size)),
    launch_backward,
)
.per_operand(1);

fn shape(op: &IndexSelect, ins: &[&Meta]) -> Inferred {
    let at = axis(op.axis, ins[0].rank())?;
    if ins[1].kind != Kind::Int64 || ins[1].rank() != 1 {
        return Err(wrong(1, ins[1], "a list of 64-bit positions"));
    }
    one(ins[0].with_size(at, ins[1].shape[0]))
}

fn vjp(op: &IndexSelect, v: &Vjp<'_>) -> Result<Grads, OpError> {
    let shape = v.shape(0);
    let at = axis(op.axis, shape.len()).map_err(|kind| v.fail(kind))?;
    let reverse = IndexSelectBackward { axis: at as i64, size: shape[at] };
    Ok(smallvec![Some(v.call(reverse, &[v.g()?, v.input(1)?])?), None])
}

/// Adds each part of the gradient to the position that it was taken from. Long sums are kept in f32 at least.
fn launch_backward(op: &IndexSelectBackward, l: &Launch<'_>) -> Launched {
    let g = l.at(0);
    let mut shape = g.size();
    shape[op.axis as usize] = op.size;
    let kind = wide(g.kind());
    let mut sums = Raw::f_zeros(shape, (kind, g.device()))?;
    Ok(smallvec![sums.f_index_add_(op.axis, l.at(1), &g.f_to_kind(kind)?)?.f_to_kind(g.kind())?])
}

fn samples(d: &mut SampleRng) -> Vec<Sample> {
    let a = d.size(5, 7);
    let b = d.size(2, 4);
    let c = d.size(3, 5);
    let select = |axis: i64, x, at| sample(IndexSelect { axis }, [x, at]);
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
