//! The gate of a mixer in one operation: silu(gate) · norm(q · s) over the last axis, where s is what the mixer summed up.

use super::Op;
use super::cuda;
use super::infer::{Inferred, Metas, mismatch, same_kind, wrong};
use super::lower::{Lower, Lowered, only};
use super::norm::{columns, lower_within, per_element, statistics, stats, within, within_backward};
use super::row::{Launch, Launched, OpRow, elements};
use super::rows_cpu;
use super::sample::{Draw, Sample, normal, sample};
use super::value::{Meta, Tensor};
use super::vjp::{Grads, Vjp};
use crate::backend::Outs;
use crate::error::OpError;
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
    .flops(flops)
    .lowers(lower),
    OpRow::backward("gated_norm_backward", shape_backward, launch_backward)
        .kernels(&[cuda::GATED_NORM_BACKWARD, rows_cpu::GATED_NORM_BACKWARD])
        .flops(flops),
];

/// The row of either operation.
pub(super) fn row(op: &Op) -> &'static OpRow {
    &ROWS[usize::from(matches!(op, Op::GatedNormBackward { .. }))]
}

/// The norm's, the gate's, and those of the products; the reverse makes the norm's result again.
fn flops(op: &Op, ins: &[&Meta], _: &[Meta]) -> u64 {
    let each = match *op {
        Op::GatedNorm { layer, .. } => 1 + per_element(layer, true)[0] + 5,
        Op::GatedNormBackward { layer, .. } => 3 + if layer { 4 } else { 2 } + 11 + per_element(layer, true)[1],
        _ => unreachable!("row of another operation"),
    };
    each * elements(&ins[..1], 1)
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
    columns(ins, 3)?;
    let mut metas: Metas = smallvec![like];
    metas.extend(statistics(ins[0], stats(*layer)));
    Ok(metas)
}

/// What runs the norm and the gate within, or their reverses.
type Run = fn(&Op, &Launch<'_>) -> Launched;

fn launch(op: &Op, l: &Launch<'_>) -> Launched {
    forward(op, l, |op, l| (op.row().launch)(op, l))
}

pub(super) fn forward(op: &Op, l: &Launch<'_>, run: Run) -> Launched {
    let Op::GatedNorm { layer, eps, .. } = *op else { unreachable!("row of another operation") };
    let s = l.at(0);
    let q = l.at(1);
    let gate = l.at(2);
    let product = q.f_to_kind(s.kind())?.f_mul(s)?;
    let ins: SmallVec<[&tch::Tensor; 3]> = [&product].into_iter().chain(l.ins[3..].iter().copied()).collect();
    let mut outs = run(&within(layer, eps), &Launch { ins: &ins })?;
    let gated = run(&Op::SiluMul, &Launch { ins: &[&gate.f_to_kind(s.kind())?, &outs[0]] })?;
    outs[0] = gated[0].f_to_kind(gate.kind())?;
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
    backward(op, l, |op, l| (op.row().launch)(op, l))
}

pub(super) fn backward(op: &Op, l: &Launch<'_>, run: Run) -> Launched {
    let Op::GatedNormBackward { layer, .. } = *op else { unreachable!("row of another operation") };
    let wide = l.at(1).kind();
    let low = l.at(2).kind();
    let [g, s, q, gate] = [0, 1, 2, 3].map(|i| l.at(i).f_to_kind(wide));
    let g = g?;
    let s = s?;
    let q = q?;
    let gate = gate?;
    let (saved, weights) = l.ins[4..].split_at(stats(layer));
    let product = q.f_mul(&s)?;
    let centred = if layer { product.f_sub(saved[0])? } else { product.shallow_clone() };
    let mut normed = centred.f_mul(saved[saved.len() - 1])?.f_mul_(weights[0])?;
    if layer {
        normed = normed.f_add_(weights[1])?;
    }
    let gates = run(&Op::SiluMulBackward, &Launch { ins: &[&g, &gate, &normed] })?;
    let ins = [&gates[1], &product].into_iter().chain(saved.iter().copied()).chain([weights[0]]);
    let made = run(&within_backward(layer), &Launch { ins: &ins.collect::<SmallVec<[_; 5]>>() })?;
    let mut outs: Outs = smallvec![made[0].f_mul(&q)?, made[0].f_mul(&s)?.f_to_kind(low)?, gates[0].f_to_kind(low)?];
    outs.extend(made.into_iter().skip(1));
    Ok(outs)
}

fn samples(d: &mut Draw, layer: bool) -> Vec<Sample> {
    let a = d.size(2, 4);
    let b = d.size(5, 7);
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
    let normed = lower_within(l, *layer, product, &affine, eps.get())?;
    let gate = l.silu(l.at(2))?;
    only(l.mul(gate, normed)?)
}
