//! A range of positions of an axis, as a view.

use super::at_axis;
use crate::op::prelude::*;

attributes! {
    Narrow { axis: i64, start: i64, len: i64 } => NARROW;
    /// The reverse: the gradient in its place, zeros around it.
    NarrowBackward {
        /// Counted from the front.
        axis: i64,
        start: i64,
        /// Size of the axis that was narrowed.
        size: i64,
    } => NARROW_BACKWARD;
}

const NARROW: OpRow<Narrow> = OpRow::<Narrow>::forward(
    "narrow",
    shape,
    |op, l| Ok(smallvec![l.at(0).f_narrow(op.axis, op.start, op.len)?]),
    vjp,
    samples,
)
.view()
.free()
.lowers(|op, l| {
    let axis = l.axis(l.at(0), op.axis);
    only(l.slice(l.at(0), axis, op.start.unsigned_abs(), op.len.unsigned_abs())?)
});

const NARROW_BACKWARD: OpRow<NarrowBackward> = OpRow::<NarrowBackward>::backward(
    "narrow_backward",
    |op, ins| one(ins[0].with_size(op.axis as usize, op.size)),
    launch_backward,
)
.free();

fn shape(op: &Narrow, ins: &[&Meta]) -> Inferred {
    let at = axis(op.axis, ins[0].rank())?;
    if op.start < 0 || op.len < 0 || op.start + op.len > ins[0].shape[at] {
        return Err(mismatch(&ins[0].shape, &[op.start, op.len], "start and length inside the axis"));
    }
    one(ins[0].with_size(at, op.len))
}

fn vjp(op: &Narrow, v: &Vjp<'_>) -> Result<Grads, OpError> {
    let shape = v.shape(0);
    let axis = at_axis(v, op.axis, shape.len())?;
    Ok(grad(v.call(NarrowBackward { axis, start: op.start, size: shape[axis as usize] }, &[v.g()?])?))
}

fn launch_backward(op: &NarrowBackward, l: &Launch<'_>) -> Launched {
    let mut shape = l.at(0).size();
    let len = std::mem::replace(&mut shape[op.axis as usize], op.size);
    Ok(smallvec![Raw::f_slice_backward(l.at(0), shape, op.axis, op.start, op.start + len, 1)?])
}

fn samples(d: &mut SampleRng) -> Vec<Sample> {
    let (a, b) = d.sizes();
    vec![
        sample(Narrow { axis: -1, start: 1, len: b - 2 }, [normal(&[a, b])]),
        sample(Narrow { axis: 0, start: 0, len: 1 }, [normal(&[a, b, 2]).transposed()]),
        sample(Narrow { axis: 1, start: 2, len: 0 }, [normal(&[a, b]).strided()]),
        sample(Narrow { axis: 1, start: 1, len: b - 1 }, [normal(&[0, b])]),
    ]
}
