//! The gate of a mixer in one operation: silu(gate) · norm(q · s) over the last axis, where s is what the mixer summed up.

use super::Op;
use super::cuda;
use super::infer::{Inferred, Metas, mismatch, same_kind, wrong};
use super::lower::{Lower, Lowered, only};
use super::norm::{lower_layer_norm, lower_rms_norm};
use super::row::{Launch, Launched, OpRow};
use super::rows_cpu;
use super::sample::{Draw, Sample, normal, sample};
use super::value::{Meta, Tensor};
use super::vjp::{Grads, Vjp};
use crate::backend::Outs;
use crate::error::{OpError, OpErrorKind};
use smallvec::{SmallVec, smallvec};

/// GatedNorm, GatedNormBackward.
///
/// Operands: s, q and gate of its shape, weight, and with layer norm a bias. Results: the gated norm, then the saved statistics of
/// `norm`. With `low`, q, gate and the result have that kind, all else the kind of s: products of 16-bit numbers beside sums in f32
/// need no casts between them.
pub static ROWS: [OpRow; 2] = [
    OpRow::forward("gated_norm", shape, launch, vjp, |d| {
        let mut all = samples(d, true);
        all.extend(samples(d, false));
        all
    })
    .saves(0b11111, 0b110)
    .kernels(&[cuda::GATED_NORM, rows_cpu::GATED_NORM])
    .flops(|_, ins, _| 14 * ins[0].numel().max(0) as u64)
    .lowers(lower),
    OpRow::backward("gated_norm_backward", shape_backward, launch_backward)
        .kernels(&[cuda::GATED_NORM_BACKWARD, rows_cpu::GATED_NORM_BACKWARD])
        .flops(|_, ins, _| 26 * ins[0].numel().max(0) as u64),
];

/// Statistics that are saved.
pub(super) fn stats(layer: bool) -> usize {
    if layer { 2 } else { 1 }
}

fn shape(op: &Op, ins: &[&Meta]) -> Inferred {
    let Op::GatedNorm { layer, low, .. } = op else { unreachable!("row of another operation") };
    let wide: SmallVec<[&Meta; 3]> = [ins[0]].into_iter().chain(ins[3..].iter().copied()).collect();
    same_kind(&wide)?;
    let like = Meta { kind: low.unwrap_or(ins[0].kind), ..ins[0].clone() };
    for (i, meta) in [(1, ins[1]), (2, ins[2])] {
        if meta.kind != like.kind {
            return Err(wrong(i, meta, "the kind of s, or the low kind"));
        }
        if meta.shape != like.shape {
            return Err(mismatch(&like.shape, &meta.shape, "s, q and gate of one shape"));
        }
    }
    let Some(&width) = like.shape.last() else { return Err(wrong(0, ins[0], "at least one axis")) };
    for (i, meta) in ins.iter().enumerate().skip(3) {
        if meta.shape.as_slice() != [width] {
            return Err(wrong(i, meta, "the last axis of operand 0"));
        }
    }
    let mut narrow = like.shape.clone();
    if let Some(last) = narrow.last_mut() {
        *last = 1;
    }
    let mut metas: Metas = smallvec![like];
    metas.extend((0..stats(*layer)).map(|_| ins[0].with_shape(narrow.clone())));
    Ok(metas)
}

fn norm_of(layer: bool, eps: super::attr::F64Bits) -> Op {
    if layer { Op::LayerNorm { affine: true, eps } } else { Op::RmsNorm { affine: true, eps } }
}

fn launch(op: &Op, l: &Launch<'_>) -> Launched {
    let Op::GatedNorm { layer, eps, .. } = *op else { unreachable!("row of another operation") };
    let (s, q, gate) = (l.at(0), l.at(1), l.at(2));
    let product = q.f_to_kind(s.kind())?.f_mul(s)?;
    let mut ins: SmallVec<[&tch::Tensor; 3]> = smallvec![&product];
    ins.extend_from_slice(&l.ins[3..]);
    let inner = norm_of(layer, eps);
    let mut outs = (inner.row().launch)(&inner, &Launch { ins: &ins })?;
    outs[0] = gate.f_to_kind(s.kind())?.f_silu()?.f_mul(&outs[0])?.f_to_kind(gate.kind())?;
    Ok(outs)
}

/// Operands of the reverse: gradient, s, q, gate, the statistics, then weight and bias. Its results: the gradients of s, q, gate, and of
/// weight and bias.
fn vjp(v: &Vjp<'_>) -> Result<Grads, OpError> {
    let Op::GatedNorm { layer, low, .. } = *v.op() else { unreachable!("row of another operation") };
    let mut ins: SmallVec<[&Tensor; 8]> = smallvec![v.g()?, v.input(0)?, v.input(1)?, v.input(2)?];
    for i in 0..stats(layer) {
        ins.push(v.output(1 + i as u8)?);
    }
    for i in 3..v.arity() {
        ins.push(v.input(i as u8)?);
    }
    Ok(v.call_all(Op::GatedNormBackward { layer, low }, &ins)?.into_iter().map(Some).collect())
}

fn shape_backward(op: &Op, ins: &[&Meta]) -> Inferred {
    let Op::GatedNormBackward { layer, .. } = op else { unreachable!("row of another operation") };
    let mut metas: Metas = ins[1..4].iter().map(|meta| (*meta).clone()).collect();
    metas.extend(ins[4 + stats(*layer)..].iter().map(|meta| (*meta).clone()));
    Ok(metas)
}

fn launch_backward(op: &Op, l: &Launch<'_>) -> Launched {
    let Op::GatedNormBackward { layer, .. } = *op else { unreachable!("row of another operation") };
    let wide = l.at(1).kind();
    let [g, s, q, gate] = [0, 1, 2, 3].map(|i| l.at(i).f_to_kind(wide));
    let (g, s, q, gate) = (g?, s?, q?, gate?);
    let (saved, weights) = l.ins[4..].split_at(stats(layer));
    let product = q.f_mul(&s)?;
    let centred = if layer { product.f_sub(saved[0])? } else { product.shallow_clone() };
    let mut normed = centred.f_mul(saved[saved.len() - 1])?.f_mul(weights[0])?;
    if layer {
        normed = normed.f_add(weights[1])?;
    }
    let dgate = gate.f_silu_backward(&g.f_mul(&normed)?)?.f_to_kind(l.at(3).kind())?;
    let reverse = reversed(layer, &g.f_mul(&gate.f_silu()?)?, &product, saved, weights[0])?;
    let (dproduct, dweights) = (&reverse[0], &reverse[1..]);
    let mut outs: Outs = smallvec![dproduct.f_mul(&q)?, dproduct.f_mul(&s)?.f_to_kind(l.at(2).kind())?, dgate];
    outs.extend(dweights.iter().map(tch::Tensor::shallow_clone));
    Ok(outs)
}

/// The reverse of the norm within.
fn reversed(
    layer: bool,
    g: &tch::Tensor,
    x: &tch::Tensor,
    stats: &[&tch::Tensor],
    weight: &tch::Tensor,
) -> Result<Outs, OpErrorKind> {
    let op = if layer { Op::LayerNormBackward { affine: true } } else { Op::RmsNormBackward { affine: true } };
    let ins: SmallVec<[&tch::Tensor; 5]> = [g, x].into_iter().chain(stats.iter().copied()).chain([weight]).collect();
    (op.row().launch)(&op, &Launch { ins: &ins })
}

fn samples(d: &mut Draw, layer: bool) -> Vec<Sample> {
    let (a, b) = (d.size(2, 4), d.size(5, 7));
    let op = || Op::GatedNorm { layer, eps: 1e-5.into(), low: None };
    let with = |all: [_; 3]| all.into_iter().chain((0..stats(layer)).map(|_| normal(&[b]))).collect::<Vec<_>>();
    let three = |shape: &[i64]| [normal(shape), normal(shape), normal(shape)];
    let [s, q, gate] = three(&[2, a, b]);
    vec![
        sample(op(), with(three(&[a, b]))),
        sample(op(), with([s.transposed(), q.strided(), gate])),
        sample(op(), with(three(&[0, b]))),
    ]
}

fn lower(op: &Op, l: &mut Lower<'_>) -> Lowered {
    let Op::GatedNorm { layer, eps, .. } = op else { unreachable!("row of another operation") };
    let product = l.mul(l.at(1), l.at(0))?;
    let affine = l.ins[3..].to_vec();
    let normed = match layer {
        true => lower_layer_norm(l, product, &affine, eps.get())?,
        false => lower_rms_norm(l, product, affine.first().copied(), eps.get())?,
    };
    let gate = l.silu(l.at(2))?;
    only(l.mul(gate, normed)?)
}
