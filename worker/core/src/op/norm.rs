//! Normalisation over the last axis. Statistics are never kept in less than f32.

use super::Op;
use super::attr::F64Bits;
use super::cuda;
use super::infer::{Inferred, Metas, float, same_kind, wrong};
use super::lower::{Lower, LowerError, Lowered, only};
use super::row::{Launch, Launched, OpRow, elements};
use super::rows_cpu;
use super::sample::{Draw, Sample, normal, sample};
use super::value::Meta;
use super::vjp::{Grads, Vjp};
use crate::backend::torch::safe::{Arg, AtenOp};
use crate::error::{OpError, OpErrorKind};
use enn_common::graph::{Binary, Fold, Id, Op as Plain, Unary};
use smallvec::{SmallVec, smallvec};

/// LayerNorm, LayerNormBackward, RmsNorm, RmsNormBackward.
///
/// Forward results: the output, then saved statistics (mean and 1/σ, or 1/rms).
pub static ROWS: [OpRow; 4] = [
    OpRow::forward("layer_norm", shape_layer_norm, launch_layer_norm, vjp_norm, |d| {
        samples(d, |affine| Op::LayerNorm { affine, eps: 1e-5.into() }, 2)
    })
    .saves(0b11, 0b110)
    .kernels(&[cuda::NORM, rows_cpu::NORM])
    .flops(flops)
    .lowers(lower),
    OpRow::backward("layer_norm_backward", shape_backward, launch_layer_norm_backward)
        .kernels(&[cuda::NORM_BACKWARD, rows_cpu::NORM_BACKWARD])
        .flops(flops),
    OpRow::forward("rms_norm", shape_rms_norm, launch_rms_norm, vjp_norm, |d| {
        samples(d, |affine| Op::RmsNorm { affine, eps: 1e-6.into() }, 1)
    })
    .saves(0b11, 0b10)
    .kernels(&[cuda::NORM, rows_cpu::NORM])
    .flops(flops)
    .lowers(lower),
    OpRow::backward("rms_norm_backward", shape_backward, launch_rms_norm_backward)
        .kernels(&[cuda::NORM_BACKWARD, rows_cpu::NORM_BACKWARD])
        .flops(flops),
];

/// That the operands from `first` on have one number per column of operand 0.
pub(super) fn columns(ins: &[&Meta], first: usize) -> Result<(), OpErrorKind> {
    let Some(&width) = ins[0].shape.last() else { return Err(wrong(0, ins[0], "at least one axis")) };
    for (i, meta) in ins.iter().enumerate().skip(first) {
        if meta.shape.as_slice() != [width] {
            return Err(wrong(i, meta, "the last axis of operand 0"));
        }
    }
    Ok(())
}

/// The statistics of `x`, so many of them.
pub(super) fn statistics(x: &Meta, count: usize) -> impl Iterator<Item = Meta> {
    let mut shape = x.shape.clone();
    if let Some(last) = shape.last_mut() {
        *last = 1;
    }
    std::iter::repeat_n(x.with_shape(shape), count)
}

/// Statistics that a layer norm or an RMS norm saves.
pub(super) fn stats(layer: bool) -> usize {
    if layer { 2 } else { 1 }
}

/// The norm with weights within another operation.
pub(super) fn within(layer: bool, eps: F64Bits) -> Op {
    if layer { Op::LayerNorm { affine: true, eps } } else { Op::RmsNorm { affine: true, eps } }
}

/// Its reverse.
pub(super) fn within_backward(layer: bool) -> Op {
    if layer { Op::LayerNormBackward { affine: true } } else { Op::RmsNormBackward { affine: true } }
}

/// Operations per element of the norm and of its reverse, with weights or without.
pub(super) fn per_element(layer: bool, affine: bool) -> [u64; 2] {
    match (layer, affine) {
        (true, true) => [8, 13],
        (true, false) => [6, 9],
        (false, true) => [4, 9],
        (false, false) => [3, 6],
    }
}

fn flops(op: &Op, ins: &[&Meta], _: &[Meta]) -> u64 {
    let each = match *op {
        Op::LayerNorm { affine, .. } => per_element(true, affine)[0],
        Op::LayerNormBackward { affine } => per_element(true, affine)[1],
        Op::RmsNorm { affine, .. } => per_element(false, affine)[0],
        Op::RmsNormBackward { affine } => per_element(false, affine)[1],
        _ => unreachable!("row of another operation"),
    };
    each * elements(&ins[..1], 1)
}

fn with_stats(ins: &[&Meta], stats: usize) -> Inferred {
    float(0, ins[0])?;
    same_kind(ins)?;
    columns(ins, 1)?;
    let mut metas: Metas = smallvec![ins[0].clone()];
    metas.extend(statistics(ins[0], stats));
    Ok(metas)
}

fn shape_layer_norm(_: &Op, ins: &[&Meta]) -> Inferred {
    with_stats(ins, 2)
}

fn shape_rms_norm(_: &Op, ins: &[&Meta]) -> Inferred {
    with_stats(ins, 1)
}

fn width(x: &tch::Tensor) -> i64 {
    x.size().last().copied().unwrap_or(1)
}

fn launch_layer_norm(op: &Op, l: &Launch<'_>) -> Launched {
    let Op::LayerNorm { affine, eps } = op else { unreachable!("row of another operation") };
    let x = l.at(0);
    let w = affine.then(|| l.at(1));
    let b = affine.then(|| l.at(2));
    let (y, mean, rstd) = x.f_native_layer_norm(width(x), w, b, eps.get())?;
    Ok(smallvec![y, mean, rstd])
}

fn launch_rms_norm(op: &Op, l: &Launch<'_>) -> Launched {
    let Op::RmsNorm { affine, eps } = op else { unreachable!("row of another operation") };
    let x = l.at(0);
    let rstd = x.f_mul(x)?.f_mean_dim(-1, true, None)?.f_add_scalar_(eps.get())?.f_rsqrt_()?;
    let mut y = x.f_mul(&rstd)?;
    if *affine {
        y = y.f_mul_(l.at(1))?;
    }
    Ok(smallvec![y, rstd])
}

/// Operands of the backward operations: gradient, input, statistics, then the weight if there is one.
fn vjp_norm(v: &Vjp<'_>) -> Result<Grads, OpError> {
    let (op, stats, affine) = match v.op() {
        Op::LayerNorm { affine, .. } => (Op::LayerNormBackward { affine: *affine }, 2, *affine),
        Op::RmsNorm { affine, .. } => (Op::RmsNormBackward { affine: *affine }, 1, *affine),
        _ => unreachable!("row of another operation"),
    };
    let mut ins: SmallVec<[&super::value::Tensor; 5]> = smallvec![v.g()?, v.input(0)?];
    for i in 0..stats {
        ins.push(v.output(1 + i)?);
    }
    if affine {
        ins.push(v.input(1)?);
    }
    Ok(v.call_all(op, &ins)?.into_iter().map(Some).collect())
}

fn shape_backward(op: &Op, ins: &[&Meta]) -> Inferred {
    let mut metas: Metas = smallvec![ins[1].clone()];
    let weights = match op {
        Op::LayerNormBackward { affine: true } => 2,
        Op::RmsNormBackward { affine: true } => 1,
        _ => 0,
    };
    for _ in 0..weights {
        metas.push(ins[ins.len() - 1].clone());
    }
    Ok(metas)
}

/// Sums a gradient over all axes but the last.
fn rows_sum(t: &tch::Tensor) -> Result<tch::Tensor, OpErrorKind> {
    let axes: Vec<i64> = (0..t.dim() as i64 - 1).collect();
    if axes.is_empty() {
        return Ok(t.shallow_clone());
    }
    Ok(t.f_sum_dim_intlist(axes, false, None)?)
}

static LAYER_NORM_BACKWARD: AtenOp = AtenOp::new(c"aten::native_layer_norm_backward", c"");

fn launch_layer_norm_backward(op: &Op, l: &Launch<'_>) -> Launched {
    let Op::LayerNormBackward { affine } = op else { unreachable!("row of another operation") };
    let g = l.at(0);
    let x = l.at(1);
    let mean = l.at(2);
    let rstd = l.at(3);
    // The kernel reads the bias's presence only.
    let weight = if *affine { Arg::Tensor(l.at(4)) } else { Arg::None };
    let mut outs = LAYER_NORM_BACKWARD.call(&[
        Arg::Tensor(g),
        Arg::Tensor(x),
        Arg::Ints(&[width(x)]),
        Arg::Tensor(mean),
        Arg::Tensor(rstd),
        weight,
        weight,
        Arg::Bools(&[true, *affine, *affine]),
    ])?;
    if !affine {
        outs.truncate(1);
    }
    Ok(outs)
}

fn launch_rms_norm_backward(op: &Op, l: &Launch<'_>) -> Launched {
    let Op::RmsNormBackward { affine } = op else { unreachable!("row of another operation") };
    let g = l.at(0);
    let x = l.at(1);
    let rstd = l.at(2);
    let hat = x.f_mul(rstd)?;
    let gw = if *affine { g.f_mul(l.at(3))? } else { g.shallow_clone() };
    let along = gw.f_mul(&hat)?.f_mean_dim(-1, true, None)?;
    let dx = gw.f_sub(&hat.f_mul(&along)?)?.f_mul_(rstd)?;
    if !affine {
        return Ok(smallvec![dx]);
    }
    Ok(smallvec![dx, rows_sum(&g.f_mul(&hat)?)?])
}

fn samples(d: &mut Draw, op: fn(bool) -> Op, weights: usize) -> Vec<Sample> {
    let a = d.size(2, 4);
    let b = d.size(5, 7);
    let affine = |x| std::iter::once(x).chain((0..weights).map(|_| normal(&[b]))).collect::<Vec<_>>();
    vec![
        sample(op(true), affine(normal(&[a, b]))),
        sample(op(true), affine(normal(&[2, a, b]).transposed())),
        sample(op(true), affine(normal(&[b]))),
        sample(op(false), [normal(&[a, 3, b]).strided()]),
        sample(op(true), affine(normal(&[0, b]))),
    ]
}

fn lower(op: &Op, l: &mut Lower<'_>) -> Lowered {
    let x = l.at(0);
    let affine = l.ins[1..].to_vec();
    let (layer, eps) = match op {
        Op::LayerNorm { eps, .. } => (true, eps),
        Op::RmsNorm { eps, .. } => (false, eps),
        _ => unreachable!("row of another operation"),
    };
    only(lower_within(l, layer, x, &affine, eps.get())?)
}

/// The norm with weights within another operation.
pub(super) fn lower_within(l: &mut Lower<'_>, layer: bool, x: Id, affine: &[Id], eps: f64) -> Result<Id, LowerError> {
    match layer {
        true => lower_layer_norm(l, x, affine, eps),
        false => lower_rms_norm(l, x, affine.first().copied(), eps),
    }
}

/// The layer norm of `x` with weight and bias, or neither.
fn lower_layer_norm(l: &mut Lower<'_>, x: Id, affine: &[Id], eps: f64) -> Result<Id, LowerError> {
    let width = l.size(x, l.rank(x) - 1)?;
    let mut full = |value: f32| l.floats(&[width], &vec![value; width as usize]);
    let (weight, bias) = match affine {
        [weight, bias] => (*weight, *bias),
        _ => (full(1.0)?, full(0.0)?),
    };
    l.emit(Plain::LayerNorm { eps }, &[x, weight, bias])
}

/// The RMS norm of `x`, with a weight or without.
fn lower_rms_norm(l: &mut Lower<'_>, x: Id, weight: Option<Id>, eps: f64) -> Result<Id, LowerError> {
    let square = l.mul(x, x)?;
    let mean = l.reduced(Fold::Mean, square, &[-1], true)?;
    let eps = l.number(eps);
    let mean = l.add(mean, eps)?;
    let size = l.unary(Unary::Sqrt, mean)?;
    let normed = l.binary(Binary::Div, x, size)?;
    weight.map_or(Ok(normed), |weight| l.mul(normed, weight))
}
