//! Sums, means and the largest element along axes; undoing a broadcast.

use super::Op;
use super::attr::Axes;
use super::infer::{Inferred, axis, broadcast, float, mismatch, one};
use super::lower::{Lower, Lowered, only};
use super::row::{Launch, Launched, OpRow, free, per_operand};
use super::sample::{Draw, Sample, normal, sample};
use super::value::{Meta, Shape, Tensor};
use super::vjp::{Grads, Vjp, grad};
use crate::error::{OpError, OpErrorKind};
use enn_common::graph::Fold;
use smallvec::smallvec;
use tch::Kind;

/// Sum, Mean, SumTo, MaxDim, MaxDimBackward.
pub static ROWS: [OpRow; 5] = [
    OpRow::forward("sum", shape_reduce, launch_reduce, vjp_reduce, |d| {
        reductions(d, |axes, keepdim| Op::Sum { axes, keepdim })
    })
    .flops(per_operand::<1>)
    .lowers(lower),
    OpRow::forward("mean", shape_reduce, launch_reduce, vjp_reduce, |d| {
        reductions(d, |axes, keepdim| Op::Mean { axes, keepdim })
    })
    .flops(per_operand::<1>)
    .lowers(lower),
    OpRow::forward("sum_to", shape_sum_to, launch_reduce, vjp_sum_to, |d| {
        let a = d.size(2, 4);
        let b = d.size(5, 7);
        vec![
            sample(Op::SumTo { shape: smallvec![b] }, [normal(&[a, b])]),
            sample(Op::SumTo { shape: smallvec![a, 1, b] }, [normal(&[3, a, 2, b]).transposed()]),
            sample(Op::SumTo { shape: smallvec![1, b] }, [normal(&[a, 0, b])]),
            sample(Op::SumTo { shape: smallvec![1, 0] }, [normal(&[a, 0])]),
        ]
    })
    .flops(per_operand::<1>)
    .lowers(lower),
    OpRow::forward("max_dim", shape_max, launch_max, vjp_max, |d| {
        let a = d.size(2, 4);
        let b = d.size(5, 7);
        vec![
            sample(Op::MaxDim { axis: -1, keepdim: false }, [normal(&[a, b])]),
            sample(Op::MaxDim { axis: 0, keepdim: true }, [normal(&[b, a]).strided()]),
            sample(Op::MaxDim { axis: 1, keepdim: false }, [normal(&[0, b, a])]),
            sample(Op::MaxDim { axis: -2, keepdim: true }, [normal(&[a, 0])]),
        ]
    })
    .saves(0, 0b10)
    .flops(per_operand::<1>)
    .lowers(lower),
    OpRow::backward("max_dim_backward", shape_max_backward, launch_max_backward).flops(free),
];

fn normalised(axes: &Axes, rank: usize) -> Result<Axes, OpErrorKind> {
    axes.iter().map(|&a| axis(a, rank).map(|a| a as i64)).collect()
}

fn reduced(shape: &[i64], axes: &Axes, keepdim: bool) -> Result<Shape, OpErrorKind> {
    let gone = normalised(axes, shape.len())?;
    let sizes = shape.iter().enumerate();
    Ok(sizes
        .filter_map(|(i, &size)| match gone.contains(&(i as i64)) {
            true => keepdim.then_some(1),
            false => Some(size),
        })
        .collect())
}

fn shape_reduce(op: &Op, ins: &[&Meta]) -> Inferred {
    float(0, ins[0])?;
    let (Op::Sum { axes, keepdim } | Op::Mean { axes, keepdim }) = op else { unreachable!("row of another operation") };
    one(ins[0].with_shape(reduced(&ins[0].shape, axes, *keepdim)?))
}

fn launch_reduce(op: &Op, l: &Launch<'_>) -> Launched {
    let x = l.at(0);
    Ok(smallvec![match op {
        // No axes means nothing to reduce here; libtorch would reduce everything.
        Op::Sum { axes, .. } | Op::Mean { axes, .. } if axes.is_empty() => x.shallow_clone(),
        Op::Sum { axes, keepdim } => x.f_sum_dim_intlist(axes.as_slice(), *keepdim, None)?,
        Op::Mean { axes, keepdim } => x.f_mean_dim(axes.as_slice(), *keepdim, None)?,
        Op::SumTo { shape } => x.f_sum_to_size(shape.as_slice())?,
        _ => unreachable!("row of another operation"),
    }])
}

fn vjp_reduce(v: &Vjp<'_>) -> Result<Grads, OpError> {
    let (axes, keepdim, mean) = match v.op() {
        Op::Sum { axes, keepdim } => (axes, *keepdim, false),
        Op::Mean { axes, keepdim } => (axes, *keepdim, true),
        _ => unreachable!("row of another operation"),
    };
    let shape = v.shape(0);
    let kept = reduced(&shape, axes, true).map_err(|kind| v.emit.fail(v.op(), kind))?;
    let mut g: Tensor = v.g()?.clone();
    if !keepdim && g.shape() != kept.as_slice() {
        g = v.call(Op::Reshape { shape: kept.clone() }, &[&g])?;
    }
    if mean {
        let count = shape.iter().zip(&kept).filter(|(full, one)| full != one).map(|(full, _)| *full).product::<i64>();
        g = v.call(Op::Scale { by: (1.0 / count.max(1) as f64).into() }, &[&g])?;
    }
    if g.shape() != shape.as_slice() {
        g = v.call(Op::Expand { shape }, &[&g])?;
    }
    Ok(grad(g))
}

fn shape_sum_to(op: &Op, ins: &[&Meta]) -> Inferred {
    let Op::SumTo { shape } = op else { unreachable!("row of another operation") };
    if broadcast(&ins[0].shape, shape)? != ins[0].shape {
        return Err(mismatch(&ins[0].shape, shape, "a target that broadcasts to the operand"));
    }
    one(ins[0].with_shape(shape.clone()))
}

fn vjp_sum_to(v: &Vjp<'_>) -> Result<Grads, OpError> {
    Ok(grad(v.call(Op::Expand { shape: v.shape(0) }, &[v.g()?])?))
}

fn shape_max(op: &Op, ins: &[&Meta]) -> Inferred {
    float(0, ins[0])?;
    let Op::MaxDim { axis: at, keepdim } = op else { unreachable!("row of another operation") };
    let at = axis(*at, ins[0].rank())?;
    if ins[0].shape[at] == 0 {
        return Err(super::infer::wrong(0, ins[0], "at least one element along the reduced axis"));
    }
    let values = ins[0].with_shape(reduced(&ins[0].shape, &smallvec![at as i64], *keepdim)?);
    let ids = Meta { kind: Kind::Int64, ..values.clone() };
    Ok(smallvec![values, ids])
}

fn launch_max(op: &Op, l: &Launch<'_>) -> Launched {
    let Op::MaxDim { axis, keepdim } = op else { unreachable!("row of another operation") };
    let (values, ids) = l.at(0).f_max_dim(*axis, *keepdim)?;
    Ok(smallvec![values, ids])
}

fn vjp_max(v: &Vjp<'_>) -> Result<Grads, OpError> {
    let Op::MaxDim { axis: at, keepdim } = *v.op() else { unreachable!("row of another operation") };
    let shape = v.shape(0);
    let at = axis(at, shape.len()).map_err(|kind| v.emit.fail(v.op(), kind))?;
    let op = Op::MaxDimBackward { axis: at as i64, keepdim, size: shape[at] };
    Ok(grad(v.call(op, &[v.g()?, v.output(1)?])?))
}

fn shape_max_backward(op: &Op, ins: &[&Meta]) -> Inferred {
    let Op::MaxDimBackward { axis, keepdim, size } = op else { unreachable!("row of another operation") };
    let mut shape = ins[0].shape.clone();
    if *keepdim {
        shape[*axis as usize] = *size;
    } else {
        shape.insert(*axis as usize, *size);
    }
    one(ins[0].with_shape(shape))
}

fn launch_max_backward(op: &Op, l: &Launch<'_>) -> Launched {
    let Op::MaxDimBackward { axis, keepdim, size } = op else { unreachable!("row of another operation") };
    let lift = |t: &tch::Tensor| if *keepdim { Ok(t.shallow_clone()) } else { t.f_unsqueeze(*axis) };
    let g = lift(l.at(0))?;
    let ids = lift(l.at(1))?;
    let mut shape = g.size();
    shape[*axis as usize] = *size;
    Ok(smallvec![tch::Tensor::f_zeros(shape, (g.kind(), g.device()))?.f_scatter_(*axis, &ids, &g)?])
}

fn reductions(d: &mut Draw, op: fn(Axes, bool) -> Op) -> Vec<Sample> {
    let a = d.size(2, 4);
    let b = d.size(5, 7);
    let c = d.size(2, 3);
    vec![
        sample(op(smallvec![1], false), [normal(&[a, b, c])]),
        sample(op(smallvec![0, -1], true), [normal(&[a, b, c]).transposed()]),
        sample(op(smallvec![0, 1], false), [normal(&[b, a]).strided()]),
        sample(op(smallvec![0], false), [normal(&[a, 0, c])]),
    ]
}

fn lower(op: &Op, l: &mut Lower<'_>) -> Lowered {
    let x = l.at(0);
    only(match op {
        Op::Sum { axes, keepdim } => l.reduced(Fold::Sum, x, axes, *keepdim)?,
        Op::Mean { axes, keepdim } => l.reduced(Fold::Mean, x, axes, *keepdim)?,
        Op::MaxDim { axis, keepdim } => l.reduced(Fold::Max, x, &[*axis], *keepdim)?,
        Op::SumTo { .. } => {
            let from = l.shape(x);
            let to = l.outs[0].clone();
            let new = from.len() - to.len();
            let gone = (0..from.len()).filter(|&i| i < new || (to[i - new] != from[i]));
            let gone: Vec<i64> = gone.map(|i| i as i64).collect();
            let sum = l.reduced(Fold::Sum, x, &gone, false)?;
            l.reshape(sum, &to)?
        }
        _ => unreachable!("row of another operation"),
    })
}
