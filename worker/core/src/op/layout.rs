//! Shape changes: views, joins, splits, and making or adding to storage.

use super::Op;
use super::attr::Axes;
use super::infer::{Inferred, Metas, axis, broadcast, mismatch, one, same_kind, wrong};
use super::lower::{Lower, Lowered, itself, only};
use super::row::{Launch, Launched, OpRow, elements, free};
use super::sample::{Draw, Operand, Sample, normal, sample};
use super::value::{Meta, Shape, Tensor};
use super::vjp::{Grads, Vjp, grad};
use crate::backend::torch::safe::{Arg, AtenOp};
use crate::error::{OpError, OpErrorKind};
use enn_common::graph::{Dim, Id};
use smallvec::{SmallVec, smallvec};
use tch::{Device, Kind};

static ADD_ALL: AtenOp = AtenOp::new(c"aten::_foreach_add_", c"List");

/// Operands, or results, more than fit a set of 16 bits.
const MANY: usize = 20;

fn many(one: impl Fn() -> Operand) -> [Operand; MANY] {
    std::array::from_fn(|_| one())
}

/// Reshape, Permute, Expand, Narrow, NarrowBackward, Cat, Stack, Split, Zeros, Ones, GradAdd, Detach.
pub static ROWS: [OpRow; 12] = [
    OpRow::forward("reshape", shape_reshape, launch, vjp_reshape, |d| {
        let a = d.size(2, 4);
        let b = d.size(5, 7);
        vec![
            sample(Op::Reshape { shape: smallvec![b, -1] }, [normal(&[a, b, 3])]),
            sample(Op::Reshape { shape: smallvec![a * b] }, [normal(&[a, b]).transposed()]),
            sample(Op::Reshape { shape: smallvec![0, b, a] }, [normal(&[a, 0, b])]),
        ]
    })
    .flops(free)
    .lowers(lower),
    OpRow::forward("permute", shape_permute, launch, vjp_permute, |d| {
        let a = d.size(2, 4);
        let b = d.size(5, 7);
        vec![
            sample(Op::Permute { axes: smallvec![2, 0, 1] }, [normal(&[a, b, 3])]),
            sample(Op::Permute { axes: smallvec![-1, 0] }, [normal(&[a, b]).strided()]),
            sample(Op::Permute { axes: smallvec![1, 2, 0] }, [normal(&[a, 0, b])]),
        ]
    })
    .flops(free)
    .lowers(lower),
    OpRow::forward(
        "expand",
        shape_expand,
        launch,
        |v| Ok(grad(v.unbroadcast(v.g()?.clone(), &v.shape(0))?)),
        |d| {
            let a = d.size(2, 4);
            let b = d.size(5, 7);
            vec![
                sample(Op::Expand { shape: smallvec![3, a, b] }, [normal(&[a, 1])]),
                sample(Op::Expand { shape: smallvec![a, b] }, [normal(&[])]),
                sample(Op::Expand { shape: smallvec![2, b, 3, a] }, [normal(&[b, 1, a]).transposed()]),
                sample(Op::Expand { shape: smallvec![a, 3, b] }, [normal(&[1, b]).strided()]),
                sample(Op::Expand { shape: smallvec![a, 0] }, [normal(&[a, 1])]),
                sample(Op::Expand { shape: smallvec![0, a, 0] }, [normal(&[1, 0])]),
            ]
        },
    )
    .flops(free)
    .lowers(lower),
    OpRow::forward("narrow", shape_narrow, launch, vjp_narrow, |d| {
        let a = d.size(2, 4);
        let b = d.size(5, 7);
        vec![
            sample(Op::Narrow { axis: -1, start: 1, len: b - 2 }, [normal(&[a, b])]),
            sample(Op::Narrow { axis: 0, start: 0, len: 1 }, [normal(&[a, b, 2]).transposed()]),
            sample(Op::Narrow { axis: 1, start: 2, len: 0 }, [normal(&[a, b]).strided()]),
            sample(Op::Narrow { axis: 1, start: 1, len: b - 1 }, [normal(&[0, b])]),
        ]
    })
    .flops(free)
    .lowers(lower),
    OpRow::backward("narrow_backward", shape_narrow_backward, launch_narrow_backward).flops(free),
    OpRow::forward("cat", shape_cat, launch, vjp_cat, |d| {
        let a = d.size(2, 4);
        let b = d.size(5, 7);
        vec![
            sample(Op::Cat { axis: 1 }, [normal(&[a, b]), normal(&[a, 2]), normal(&[a, 0])]),
            sample(Op::Cat { axis: -3 }, [normal(&[a, b, 2]).transposed(), normal(&[1, b, 2]).strided()]),
            sample(Op::Cat { axis: 1 }, many(|| normal(&[a, 1]))),
            sample(Op::Cat { axis: 0 }, [normal(&[0, b]), normal(&[0, b])]),
        ]
    })
    .flops(free)
    .lowers(lower),
    OpRow::forward("stack", shape_stack, launch, vjp_stack, |d| {
        let a = d.size(2, 4);
        let b = d.size(5, 7);
        vec![
            sample(Op::Stack { axis: 1 }, [normal(&[a, b]), normal(&[a, b]).transposed()]),
            sample(Op::Stack { axis: -1 }, [normal(&[a]), normal(&[a]), normal(&[a]).strided()]),
            sample(Op::Stack { axis: 0 }, many(|| normal(&[a]))),
            sample(Op::Stack { axis: -2 }, [normal(&[a, 0]), normal(&[a, 0])]),
        ]
    })
    .flops(free)
    .lowers(lower),
    OpRow::forward("split", shape_split, launch, vjp_split, |d| {
        let a = d.size(2, 4);
        let b = d.size(5, 7);
        vec![
            sample(Op::Split { axis: -1, sizes: smallvec![2, b, 1] }, [normal(&[a, b + 3])]),
            sample(Op::Split { axis: 0, sizes: smallvec![a, 0] }, [normal(&[a, b]).transposed()]),
            sample(Op::Split { axis: 1, sizes: smallvec![1; MANY] }, [normal(&[a, MANY as i64])]),
            sample(Op::Split { axis: 1, sizes: smallvec![2, b - 2] }, [normal(&[0, b])]),
            sample(Op::Split { axis: 0, sizes: smallvec![0, 0] }, [normal(&[0, b])]),
        ]
    })
    .flops(free)
    .lowers(lower_split),
    OpRow::backward("zeros", shape_filled, launch_filled)
        .samples(|d| filled(d, |shape, kind| Op::Zeros { shape, kind, device: Device::Cpu }))
        .flops(free)
        .lowers(lower_filled),
    OpRow::backward("ones", shape_filled, launch_filled)
        .samples(|d| filled(d, |shape, kind| Op::Ones { shape, kind, device: Device::Cpu }))
        .flops(free)
        .lowers(lower_filled),
    OpRow::backward("grad_add", |_, _| Ok(Metas::new()), launch_grad_add).flops(|_, ins, _| elements(ins, 2)),
    OpRow::backward("detach", |_, ins| one(ins[0].clone()), |_, l| Ok(smallvec![l.at(0).shallow_clone()]))
        .samples(|d| {
            let a = d.size(2, 4);
            let b = d.size(5, 7);
            let shapes = [normal(&[a, b, 3]), normal(&[b, a]).transposed(), normal(&[0, b])];
            shapes.into_iter().map(|x| sample(Op::Detach, [x])).collect()
        })
        .flops(free)
        .lowers(itself),
];

fn filled(d: &mut Draw, op: fn(Axes, Kind) -> Op) -> Vec<Sample> {
    let a = d.size(2, 4);
    let b = d.size(5, 7);
    let shapes: [Axes; 3] = [smallvec![a, b], smallvec![], smallvec![a, 0]];
    shapes.into_iter().map(|shape| sample(op(shape, Kind::Float), [])).collect()
}

/// In pairs: a gradient, and what is added to it. Each gradient is there once.
fn launch_grad_add(_: &Op, l: &Launch<'_>) -> Launched {
    let [sums, more] = [0, 1].map(|of| l.ins.iter().skip(of).step_by(2).copied().collect::<Vec<_>>());
    if let ([sum], [more]) = (&*sums, &*more) {
        let _ = sum.shallow_clone().f_add_(more)?;
    } else {
        ADD_ALL.call(&[Arg::Tensors(&sums), Arg::Tensors(&more), Arg::Int(1)])?;
    }
    Ok(SmallVec::new())
}

/// The target of a reshape with −1 worked out.
pub fn resolve_reshape(from: &[i64], to: &[i64]) -> Result<Shape, OpErrorKind> {
    let refuse = || mismatch(from, to, "the same number of elements, with at most one -1");
    let total: i64 = from.iter().product();
    let known: i64 = to.iter().filter(|s| **s != -1).product();
    let open = to.iter().filter(|s| **s == -1).count();
    if to.iter().any(|s| *s < -1) || open > 1 {
        return Err(refuse());
    }
    match open {
        0 if known == total => Ok(to.into()),
        1 if known != 0 && total % known == 0 => {
            Ok(to.iter().map(|s| if *s == -1 { total / known } else { *s }).collect())
        }
        _ => Err(refuse()),
    }
}

fn shape_reshape(op: &Op, ins: &[&Meta]) -> Inferred {
    let Op::Reshape { shape } = op else { unreachable!("row of another operation") };
    one(ins[0].with_shape(resolve_reshape(&ins[0].shape, shape)?))
}

fn shape_permute(op: &Op, ins: &[&Meta]) -> Inferred {
    let Op::Permute { axes } = op else { unreachable!("row of another operation") };
    let order = order(axes, ins[0].rank())?;
    one(ins[0].with_shape(order.iter().map(|a| ins[0].shape[*a as usize]).collect::<Shape>()))
}

fn order(axes: &[i64], rank: usize) -> Result<Axes, OpErrorKind> {
    let order = axes.iter().map(|a| axis(*a, rank).map(|a| a as i64)).collect::<Result<Axes, _>>()?;
    let mut sorted = order.clone();
    sorted.sort_unstable();
    if sorted.iter().copied().eq(0..rank as i64) {
        return Ok(order);
    }
    Err(mismatch(axes, &[rank as i64], "each axis exactly once"))
}

fn shape_expand(op: &Op, ins: &[&Meta]) -> Inferred {
    let Op::Expand { shape } = op else { unreachable!("row of another operation") };
    if broadcast(&ins[0].shape, shape)? != *shape {
        return Err(mismatch(&ins[0].shape, shape, "a target the operand broadcasts to"));
    }
    one(ins[0].with_shape(shape.clone()))
}

fn shape_narrow(op: &Op, ins: &[&Meta]) -> Inferred {
    let Op::Narrow { axis: at, start, len } = op else { unreachable!("row of another operation") };
    let at = axis(*at, ins[0].rank())?;
    let mut shape = ins[0].shape.clone();
    if *start < 0 || *len < 0 || start + len > shape[at] {
        return Err(mismatch(&shape, &[*start, *len], "start and length inside the axis"));
    }
    shape[at] = *len;
    one(ins[0].with_shape(shape))
}

fn shape_cat(op: &Op, ins: &[&Meta]) -> Inferred {
    let Op::Cat { axis: at } = op else { unreachable!("row of another operation") };
    let at = axis(*at, ins[0].rank())?;
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

fn shape_stack(op: &Op, ins: &[&Meta]) -> Inferred {
    let Op::Stack { axis: at } = op else { unreachable!("row of another operation") };
    let at = axis(*at, ins[0].rank() + 1)?;
    same_kind(ins)?;
    if let Some((i, meta)) = ins.iter().enumerate().find(|(_, m)| m.shape != ins[0].shape) {
        return Err(wrong(i, meta, "operand 0's shape"));
    }
    let mut shape = ins[0].shape.clone();
    shape.insert(at, ins.len() as i64);
    one(ins[0].with_shape(shape))
}

fn shape_split(op: &Op, ins: &[&Meta]) -> Inferred {
    let Op::Split { axis: at, sizes } = op else { unreachable!("row of another operation") };
    let at = axis(*at, ins[0].rank())?;
    if sizes.iter().sum::<i64>() != ins[0].shape[at] || sizes.iter().any(|s| *s < 0) {
        return Err(mismatch(&ins[0].shape, sizes, "parts that sum to the axis"));
    }
    Ok(sizes
        .iter()
        .map(|size| {
            let mut shape = ins[0].shape.clone();
            shape[at] = *size;
            ins[0].with_shape(shape)
        })
        .collect())
}

fn shape_filled(op: &Op, _: &[&Meta]) -> Inferred {
    let (Op::Zeros { shape, kind, device } | Op::Ones { shape, kind, device }) = op else {
        unreachable!("row of another operation")
    };
    one(Meta { shape: shape.clone(), kind: *kind, device: *device })
}

fn launch_filled(op: &Op, _: &Launch<'_>) -> Launched {
    Ok(smallvec![match op {
        Op::Zeros { shape, kind, device } => tch::Tensor::f_zeros(shape.as_slice(), (*kind, *device))?,
        Op::Ones { shape, kind, device } => tch::Tensor::f_ones(shape.as_slice(), (*kind, *device))?,
        _ => unreachable!("row of another operation"),
    }])
}

fn launch(op: &Op, l: &Launch<'_>) -> Launched {
    Ok(match op {
        Op::Reshape { shape } => smallvec![l.at(0).f_reshape(shape.as_slice())?],
        Op::Permute { axes } => smallvec![l.at(0).f_permute(axes.as_slice())?],
        Op::Expand { shape } => smallvec![l.at(0).f_expand(shape.as_slice(), false)?],
        Op::Narrow { axis, start, len } => smallvec![l.at(0).f_narrow(*axis, *start, *len)?],
        Op::Cat { axis } => smallvec![tch::Tensor::f_cat(l.ins, *axis)?],
        Op::Stack { axis } => smallvec![tch::Tensor::f_stack(l.ins, *axis)?],
        Op::Split { axis, sizes } => l.at(0).f_split_with_sizes(sizes.as_slice(), *axis)?.into(),
        _ => unreachable!("row of another operation"),
    })
}

fn vjp_reshape(v: &Vjp<'_>) -> Result<Grads, OpError> {
    Ok(grad(v.call(Op::Reshape { shape: v.shape(0) }, &[v.g()?])?))
}

fn vjp_permute(v: &Vjp<'_>) -> Result<Grads, OpError> {
    let Op::Permute { axes } = v.op() else { unreachable!("row of another operation") };
    let order = order(axes, axes.len()).map_err(|kind| v.emit.fail(v.op(), kind))?;
    let mut inverse: Axes = smallvec![0; order.len()];
    for (to, from) in order.iter().enumerate() {
        inverse[*from as usize] = to as i64;
    }
    Ok(grad(v.call(Op::Permute { axes: inverse }, &[v.g()?])?))
}

fn at_axis(v: &Vjp<'_>, at: i64, rank: usize) -> Result<i64, OpError> {
    axis(at, rank).map(|a| a as i64).map_err(|kind| v.emit.fail(v.op(), kind))
}

fn vjp_narrow(v: &Vjp<'_>) -> Result<Grads, OpError> {
    let Op::Narrow { axis: at, start, .. } = *v.op() else { unreachable!("row of another operation") };
    let shape = v.shape(0);
    let axis = at_axis(v, at, shape.len())?;
    Ok(grad(v.call(Op::NarrowBackward { axis, start, size: shape[axis as usize] }, &[v.g()?])?))
}

fn shape_narrow_backward(op: &Op, ins: &[&Meta]) -> Inferred {
    let Op::NarrowBackward { axis, size, .. } = op else { unreachable!("row of another operation") };
    let mut shape = ins[0].shape.clone();
    shape[*axis as usize] = *size;
    one(ins[0].with_shape(shape))
}

fn launch_narrow_backward(op: &Op, l: &Launch<'_>) -> Launched {
    let Op::NarrowBackward { axis, start, size } = op else { unreachable!("row of another operation") };
    let mut shape = l.at(0).size();
    let len = std::mem::replace(&mut shape[*axis as usize], *size);
    Ok(smallvec![tch::Tensor::f_slice_backward(l.at(0), shape, *axis, *start, start + len, 1)?])
}

fn vjp_cat(v: &Vjp<'_>) -> Result<Grads, OpError> {
    let Op::Cat { axis: at } = *v.op() else { unreachable!("row of another operation") };
    let g = v.g()?;
    let axis = at_axis(v, at, g.shape().len())?;
    let mut grads: Grads = smallvec![None; v.arity()];
    let mut start = 0;
    for (i, slot) in grads.iter_mut().enumerate() {
        let len = v.shape(i)[axis as usize];
        if v.needs(i) {
            *slot = Some(v.call(Op::Narrow { axis, start, len }, &[g])?);
        }
        start += len;
    }
    Ok(grads)
}

fn vjp_stack(v: &Vjp<'_>) -> Result<Grads, OpError> {
    let Op::Stack { axis: at } = *v.op() else { unreachable!("row of another operation") };
    let g = v.g()?;
    let axis = at_axis(v, at, g.shape().len())?;
    let mut grads: Grads = smallvec![None; v.arity()];
    for (i, slot) in grads.iter_mut().enumerate() {
        if v.needs(i) {
            let part: Tensor = v.call(Op::Narrow { axis, start: i as i64, len: 1 }, &[g])?;
            *slot = Some(v.call(Op::Reshape { shape: v.shape(i) }, &[&part])?);
        }
    }
    Ok(grads)
}

fn vjp_split(v: &Vjp<'_>) -> Result<Grads, OpError> {
    let Op::Split { axis: at, sizes } = v.op() else { unreachable!("row of another operation") };
    let meta = v.meta(0);
    let axis = at_axis(v, *at, meta.rank())?;
    let mut parts: SmallVec<[Tensor; 4]> = SmallVec::new();
    for (i, size) in sizes.iter().enumerate() {
        parts.push(match v.gout(i) {
            Some(g) => g.clone(),
            None => {
                let mut shape = meta.shape.clone();
                shape[axis as usize] = *size;
                v.zeros(&meta.with_shape(shape))?
            }
        });
    }
    let refs: SmallVec<[&Tensor; 4]> = parts.iter().collect();
    Ok(grad(v.call(Op::Cat { axis }, &refs)?))
}

fn lower(op: &Op, l: &mut Lower<'_>) -> Lowered {
    let x = l.at(0);
    let out = l.outs[0].clone();
    only(match op {
        Op::Reshape { .. } => l.reshape(x, &out)?,
        Op::Permute { axes } => {
            let axes: Vec<usize> = axes.iter().map(|axis| l.axis(x, *axis)).collect();
            l.permute(x, &axes)?
        }
        Op::Expand { .. } => l.expand(x, &out)?,
        Op::Narrow { axis, start, len } => l.slice(x, l.axis(x, *axis), start.unsigned_abs(), len.unsigned_abs())?,
        Op::Cat { axis } => {
            // An operand without elements adds nothing, and not every runtime takes one.
            let axis = l.axis(x, *axis);
            let full = |id: &Id| l.graph.value(*id).shape[axis] != Dim::Fixed(0);
            let parts: Vec<Id> = l.ins.iter().copied().filter(full).collect();
            if parts.is_empty() { x } else { l.concat(&parts, axis)? }
        }
        Op::Stack { axis } => {
            let axis = if *axis < 0 { out.len() - axis.unsigned_abs() as usize } else { *axis as usize };
            let mut thin = out;
            thin[axis] = Dim::ONE;
            let parts: Vec<Id> = l.ins.iter().map(|id| l.reshape(*id, &thin)).collect::<Result<_, _>>()?;
            l.concat(&parts, axis)?
        }
        _ => unreachable!("row of another operation"),
    })
}

fn lower_split(op: &Op, l: &mut Lower<'_>) -> Lowered {
    let Op::Split { axis, sizes } = op else { unreachable!("row of another operation") };
    let x = l.at(0);
    let axis = l.axis(l.at(0), *axis);
    let mut start = 0;
    let part = |size: &i64| {
        let part = l.slice(x, axis, start, size.unsigned_abs());
        start += size.unsigned_abs();
        part
    };
    sizes.iter().map(part).collect()
}

fn lower_filled(op: &Op, l: &mut Lower<'_>) -> Lowered {
    let number = l.number(if matches!(op, Op::Ones { .. }) { 1.0 } else { 0.0 });
    let shape = l.outs[0].clone();
    only(l.expand(number, &shape)?)
}
