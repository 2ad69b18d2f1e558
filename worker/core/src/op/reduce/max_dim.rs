//! The largest element along an axis, and its position.

use super::reduced;
use crate::op::prelude::*;
use enn_common::graph::Fold;

attributes! {
    /// Results: the largest elements, and as saved intermediate their positions.
    MaxDim { axis: i64, keepdim: bool } => MAX_DIM;
    /// The reverse. Operands: the gradient and the positions.
    MaxDimBackward {
        /// Counted from the front.
        axis: i64,
        keepdim: bool,
        /// Size of the reduced axis.
        size: i64,
    } => MAX_DIM_BACKWARD;
}

const MAX_DIM: OpRow<MaxDim> = OpRow::<MaxDim>::forward("max_dim", shape, launch, vjp, samples)
    .saves(0, 0b10)
    .per_operand(1)
    .lowers(|op, l| only(l.reduced(Fold::Max, l.at(0), &[op.axis], op.keepdim)?));

const MAX_DIM_BACKWARD: OpRow<MaxDimBackward> =
    OpRow::backward("max_dim_backward", shape_backward, launch_backward).free();

fn shape(op: &MaxDim, ins: &[&Meta]) -> Inferred {
    float(0, ins[0])?;
    let at = axis(op.axis, ins[0].rank())?;
    if ins[0].shape[at] == 0 {
        return Err(wrong(0, ins[0], "at least one element along the reduced axis"));
    }
    let values = ins[0].with_shape(reduced(&ins[0].shape, &[at as i64], op.keepdim)?);
    let ids = Meta { kind: Kind::Int64, ..values.clone() };
    Ok(smallvec![values, ids])
}

fn launch(op: &MaxDim, l: &Launch<'_>) -> Launched {
    let (values, ids) = l.at(0).f_max_dim(op.axis, op.keepdim)?;
    Ok(smallvec![values, ids])
}

fn vjp(op: &MaxDim, v: &Vjp<'_>) -> Result<Grads, OpError> {
    let shape = v.shape(0);
    let at = axis(op.axis, shape.len()).map_err(|kind| v.fail(kind))?;
    let reverse = MaxDimBackward { axis: at as i64, keepdim: op.keepdim, size: shape[at] };
    Ok(grad(v.call(reverse, &[v.g()?, v.output(1)?])?))
}

fn shape_backward(op: &MaxDimBackward, ins: &[&Meta]) -> Inferred {
    let mut shape = ins[0].shape.clone();
    if op.keepdim {
        shape[op.axis as usize] = op.size;
    } else {
        shape.insert(op.axis as usize, op.size);
    }
    one(ins[0].with_shape(shape))
}

fn launch_backward(op: &MaxDimBackward, l: &Launch<'_>) -> Launched {
    let lift = |t: &Raw| if op.keepdim { Ok(t.shallow_clone()) } else { t.f_unsqueeze(op.axis) };
    let g = lift(l.at(0))?;
    let ids = lift(l.at(1))?;
    let mut shape = g.size();
    shape[op.axis as usize] = op.size;
    Ok(smallvec![Raw::f_zeros(shape, (g.kind(), g.device()))?.f_scatter_(op.axis, &ids, &g)?])
}

fn samples(d: &mut SampleRng) -> Vec<Sample> {
    let (a, b) = d.sizes();
    vec![
        sample(MaxDim { axis: -1, keepdim: false }, [normal(&[a, b])]),
        sample(MaxDim { axis: 0, keepdim: true }, [normal(&[b, a]).strided()]),
        sample(MaxDim { axis: 1, keepdim: false }, [normal(&[0, b, a])]),
        sample(MaxDim { axis: -2, keepdim: true }, [normal(&[a, 0])]),
    ]
}
