//! A residual sum and its normalisation in one operation: x + branch, and the norm of that over the last axis.
//!
//! Two results flow on: the sum, to the next residual connection, and the norm, to the next branch.

use super::Op;
use super::cuda;
use super::infer::{Inferred, Metas, mismatch, same_kind, wrong};
use super::lower::{Lower, Lowered};
use super::norm::{columns, lower_within, per_element, statistics, stats, within, within_backward};
use super::row::{Launch, Launched, OpRow, elements};
use super::rows_cpu;
use super::sample::{Draw, Sample, normal, sample};
use super::value::{Meta, Tensor};
use super::vjp::{Grads, Vjp};
use crate::error::OpError;
use smallvec::{SmallVec, smallvec};

/// AddNorm, AddNormBackward.
///
/// Operands: x, branch of the same shape, weight, and with layer norm a bias. Results: the sum, the norm, then the saved
/// statistics of `norm`. With `low` the branch and the norm have that kind, all else the kind of x: a stream kept in f32
/// and branches of 16-bit products need no casts between them.
pub static ROWS: [OpRow; 2] = [
    OpRow::forward("add_norm", shape, launch, vjp, |d| {
        let mut all = samples(d, true);
        all.extend(samples(d, false));
        all
    })
    .saves(0b100, 0b1101)
    .kernels(&[cuda::ADD_NORM, rows_cpu::NORM])
    .flops(flops)
    .lowers(lower),
    OpRow::backward("add_norm_backward", shape_backward, launch_backward)
        .kernels(&[cuda::ADD_NORM_BACKWARD, rows_cpu::NORM_BACKWARD])
        .flops(flops),
];

/// The row of either operation.
pub(super) fn row(op: &Op) -> &'static OpRow {
    &ROWS[usize::from(matches!(op, Op::AddNormBackward { .. }))]
}

/// The norm's, and one addition for the sum or its gradient.
fn flops(op: &Op, ins: &[&Meta], _: &[Meta]) -> u64 {
    let each = match *op {
        Op::AddNorm { layer, .. } => 1 + per_element(layer, true)[0],
        Op::AddNormBackward { layer, gsum, .. } => u64::from(gsum) + per_element(layer, true)[1],
        _ => unreachable!("row of another operation"),
    };
    each * elements(&ins[..1], 1)
}

fn shape(op: &Op, ins: &[&Meta]) -> Inferred {
    let Op::AddNorm { layer, low, .. } = op else { unreachable!("row of another operation") };
    let stream: SmallVec<[&Meta; 3]> = ins.iter().enumerate().filter(|(i, _)| *i != 1).map(|(_, meta)| *meta).collect();
    same_kind(&stream)?;
    let branch = Meta { kind: low.unwrap_or(ins[0].kind), ..ins[0].clone() };
    if ins[1].kind != branch.kind {
        return Err(wrong(1, ins[1], "a branch of the kind of x, or of the low kind"));
    }
    if ins[0].shape != ins[1].shape {
        return Err(mismatch(&ins[0].shape, &ins[1].shape, "x and branch of one shape"));
    }
    columns(ins, 2)?;
    let mut metas: Metas = smallvec![ins[0].clone(), branch];
    metas.extend(statistics(ins[0], stats(*layer)));
    Ok(metas)
}

fn launch(op: &Op, l: &Launch<'_>) -> Launched {
    let Op::AddNorm { layer, eps, low } = *op else { unreachable!("row of another operation") };
    let sum = l.at(0).f_add(l.at(1))?;
    let mut ins: SmallVec<[&tch::Tensor; 3]> = smallvec![&sum];
    ins.extend_from_slice(&l.ins[2..]);
    let inner = within(layer, eps);
    let mut outs = (inner.row().launch)(&inner, &Launch { ins: &ins })?;
    if let Some(low) = low {
        outs[0] = outs[0].f_to_kind(low)?;
    }
    outs.insert(0, sum.shallow_clone());
    Ok(outs)
}

/// Operands of the reverse: gradient of the norm, the sum, the statistics, the weight, then the gradient of the sum if there is one.
/// Its results: the gradient of x, of the weights, and with `low` that of the branch, which is the first rounded.
fn vjp(v: &Vjp<'_>) -> Result<Grads, OpError> {
    let Op::AddNorm { layer, low, .. } = *v.op() else { unreachable!("row of another operation") };
    let mut grads: Grads = smallvec![None; v.arity()];
    let gsum = v.gout(0);
    let Some(g) = v.gout(1) else {
        let branch = gsum.zip(low).map(|(g, to)| v.call(Op::Cast { to }, &[g])).transpose()?;
        grads[0] = gsum.cloned();
        grads[1] = branch.or_else(|| gsum.cloned());
        return Ok(grads);
    };
    let mut ins: SmallVec<[&Tensor; 6]> = smallvec![g, v.output(0)?];
    for i in 0..stats(layer) {
        ins.push(v.output(2 + i as u8)?);
    }
    ins.push(v.input(2)?);
    ins.extend(gsum);
    let made = v.call_all(Op::AddNormBackward { layer, gsum: gsum.is_some(), low }, &ins)?;
    let stream = &made[0];
    let weights = &made[1..=stats(layer)];
    let branch = made.get(1 + stats(layer)).unwrap_or(stream);
    grads[0] = Some(stream.clone());
    grads[1] = Some(branch.clone());
    for (slot, weight) in grads[2..].iter_mut().zip(weights) {
        *slot = Some(weight.clone());
    }
    Ok(grads)
}

fn shape_backward(op: &Op, ins: &[&Meta]) -> Inferred {
    let Op::AddNormBackward { layer, low, .. } = op else { unreachable!("row of another operation") };
    let weight = ins[2 + stats(*layer)];
    let mut metas: Metas = smallvec![ins[1].clone()];
    metas.extend((0..stats(*layer)).map(|_| weight.clone()));
    metas.extend(low.map(|kind| Meta { kind, ..ins[1].clone() }));
    Ok(metas)
}

fn launch_backward(op: &Op, l: &Launch<'_>) -> Launched {
    let Op::AddNormBackward { layer, gsum, low } = *op else { unreachable!("row of another operation") };
    let inner = within_backward(layer);
    let g = l.at(0).f_to_kind(l.at(1).kind())?;
    let operands: SmallVec<[&tch::Tensor; 5]> =
        std::iter::once(&g).chain(l.ins[1..3 + stats(layer)].iter().copied()).collect();
    let mut outs = (inner.row().launch)(&inner, &Launch { ins: &operands })?;
    if gsum {
        outs[0] = outs[0].f_add(l.at(l.ins.len() - 1))?;
    }
    if let Some(low) = low {
        outs.push(outs[0].f_to_kind(low)?);
    }
    Ok(outs)
}

fn samples(d: &mut Draw, layer: bool) -> Vec<Sample> {
    let a = d.size(2, 4);
    let b = d.size(5, 7);
    let op = || Op::AddNorm { layer, eps: 1e-5.into(), low: None };
    let with = |x, branch| [x, branch].into_iter().chain((0..stats(layer)).map(|_| normal(&[b]))).collect::<Vec<_>>();
    vec![
        sample(op(), with(normal(&[a, b]), normal(&[a, b]))),
        sample(op(), with(normal(&[2, a, b]).transposed(), normal(&[2, a, b]).strided())),
        sample(op(), with(normal(&[0, b]), normal(&[0, b]))),
    ]
}

fn lower(op: &Op, l: &mut Lower<'_>) -> Lowered {
    let Op::AddNorm { layer, eps, .. } = op else { unreachable!("row of another operation") };
    let sum = l.add(l.at(0), l.at(1))?;
    let affine = l.ins[2..].to_vec();
    let normed = lower_within(l, *layer, sum, &affine, eps.get())?;
    Ok(smallvec![sum, normed])
}
