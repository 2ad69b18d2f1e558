//! Normalisation over the last axis, alone and fused with what stands before or behind it; softmax. Statistics are never kept in less
//! than f32.

pub mod add_norm;
pub mod alone;
mod cpu;
mod cuda;
pub mod gated_norm;
mod plain;
pub mod softmax;

use super::prelude::*;
use enn_common::graph::{Binary, Fold, Id, Op as Plain, Unary};

/// A norm, alone or within another operation.
#[derive(Debug, Clone, Copy)]
struct Norm {
    /// Whether it is a layer norm; else an RMS norm, which neither subtracts the mean nor has a bias.
    layer: bool,
    /// Whether it has weights.
    affine: bool,
    eps: f64,
}

/// Refuses operands from `first` on that do not have one number per column of operand 0.
fn columns(ins: &[&Meta], first: usize) -> Result<(), OpErrorKind> {
    let Some(&width) = ins[0].shape.last() else { return Err(wrong(0, ins[0], "at least one axis")) };
    for (i, meta) in ins.iter().enumerate().skip(first) {
        if meta.shape.as_slice() != [width] {
            return Err(wrong(i, meta, "the last axis of operand 0"));
        }
    }
    Ok(())
}

/// The statistics of `x` that a norm saves.
fn statistics(x: &Meta, layer: bool) -> impl Iterator<Item = Meta> {
    std::iter::repeat_n(x.with_size(x.rank() - 1, 1), stats(layer))
}

/// Number of statistics: mean and 1/σ of a layer norm, 1/rms of an RMS norm. There are as many weights.
fn stats(layer: bool) -> usize {
    if layer { 2 } else { 1 }
}

/// Floating-point operations per element of the norm and of its reverse.
fn per_element(layer: bool, affine: bool) -> [u64; 2] {
    match (layer, affine) {
        (true, true) => [8, 13],
        (true, false) => [6, 9],
        (false, true) => [4, 9],
        (false, false) => [3, 6],
    }
}

/// The shape rule of a norm alone.
fn shape(layer: bool, ins: &[&Meta]) -> Inferred {
    float(0, ins[0])?;
    same_kind(ins)?;
    columns(ins, 1)?;
    let mut metas: Metas = smallvec![ins[0].clone()];
    metas.extend(statistics(ins[0], layer));
    Ok(metas)
}

/// The reverse rule of a norm alone: emits `reverse` with the gradient, the input, the statistics, and the weight if there is one.
fn vjp(layer: bool, affine: bool, reverse: super::Op, v: &Vjp<'_>) -> Result<Grads, OpError> {
    let mut ins: SmallVec<[&Tensor; 5]> = smallvec![v.g()?, v.input(0)?];
    for i in 0..stats(layer) {
        ins.push(v.output(1 + i as u8)?);
    }
    if affine {
        ins.push(v.input(1)?);
    }
    Ok(v.call_all(reverse, &ins)?.into_iter().map(Some).collect())
}

/// The shape rule of the reverse: the gradient of the input, then those of the weights.
fn shape_backward(layer: bool, affine: bool, ins: &[&Meta]) -> Inferred {
    let mut metas: Metas = smallvec![ins[1].clone()];
    if affine {
        metas.extend(std::iter::repeat_n(ins[ins.len() - 1].clone(), stats(layer)));
    }
    Ok(metas)
}

fn samples<A: Into<super::Op>>(d: &mut SampleRng, op: fn(bool) -> A, weights: usize) -> Vec<Sample> {
    let (a, b) = d.sizes();
    let affine = |x| std::iter::once(x).chain((0..weights).map(|_| normal(&[b]))).collect::<Vec<_>>();
    vec![
        sample(op(true), affine(normal(&[a, b]))),
        sample(op(true), affine(normal(&[2, a, b]).transposed())),
        sample(op(true), affine(normal(&[b]))),
        sample(op(false), [normal(&[a, 3, b]).strided()]),
        sample(op(true), affine(normal(&[0, b]))),
    ]
}

/// Lowers the norm of `x` with the weights `affine`, or without any.
fn lower(l: &mut Lower<'_>, layer: bool, x: Id, affine: &[Id], eps: f64) -> Result<Id, LowerError> {
    if layer {
        let width = l.size(x, l.rank(x) - 1)?;
        let mut full = |value: f32| l.floats(&[width], &vec![value; width as usize]);
        let (weight, bias) = match affine {
            [weight, bias] => (*weight, *bias),
            _ => (full(1.0)?, full(0.0)?),
        };
        return l.emit(Plain::LayerNorm { eps }, &[x, weight, bias]);
    }
    let square = l.mul(x, x)?;
    let mean = l.reduced(Fold::Mean, square, &[-1], true)?;
    let eps = l.number(eps);
    let mean = l.add(mean, eps)?;
    let size = l.unary(Unary::Sqrt, mean)?;
    let normed = l.binary(Binary::Div, x, size)?;
    affine.first().map_or(Ok(normed), |weight| l.mul(normed, *weight))
}
