//! Scaled dot-product attention with a structural mask and an additive key bias.
//!
//! **Invariant:** one mask convention, true = keep, on every kernel.

use super::Op;
use super::attention_aten;
use super::attr::Structural;
use super::infer::{Inferred, Metas, float, mismatch, same_kind, wide, wrong};
use super::lower::{Lower, Lowered, only};
use super::row::{Launch, Launched, OpRow};
use super::sample::{Draw, Sample, normal, sample};
use super::value::{Meta, Tensor};
use super::vjp::{Grads, Vjp};
use crate::error::{OpError, OpErrorKind};
use enn_common::graph::{Dim, Op as Plain};
use smallvec::{SmallVec, smallvec};
use tch::Kind;

/// Sdpa, SdpaBackward.
///
/// Operands: q (B,H,Nq,Dh), k and v (B,H,Nk,Dh), optional bias (Nk) or (B,Nk). Results: (B,H,Nq,Dh), and log Σ exp of each
/// query's scores (B,H,Nq), f32 at least, as saved intermediate: the reverse rule makes the weights again from it, so that
/// no (Nq,Nk) lives between forward and backward. Operands of the backward row: gradient, q, k, v, result, log Σ exp, bias.
pub static ROWS: [OpRow; 2] = [
    OpRow::forward("sdpa", shape, launch, vjp, samples)
        .saves(0b1111, 0b11)
        .kernels(&attention_aten::FORWARD)
        .flops(|_, ins, outs| (4 * outs[0].numel() * ins[1].shape[2]).max(0) as u64)
        .lowers(lower),
    OpRow::backward("sdpa_backward", shape_backward, launch_backward)
        .kernels(&attention_aten::BACKWARD)
        .flops(|_, ins, _| (10 * ins[1].numel() * ins[2].shape[2]).max(0) as u64),
];

/// The row of either operation.
pub(super) fn row(op: &Op) -> &'static OpRow {
    &ROWS[usize::from(matches!(op, Op::SdpaBackward { .. }))]
}

fn shape(op: &Op, ins: &[&Meta]) -> Inferred {
    let Op::Sdpa { mask, bias } = op else { unreachable!("row of another operation") };
    let (q, k, v) = (ins[0], ins[1], ins[2]);
    float(0, q)?;
    same_kind(ins)?;
    for (i, meta) in ins.iter().enumerate().take(3) {
        if meta.rank() != 4 {
            return Err(wrong(i, meta, "(batch, heads, tokens, width)"));
        }
    }
    if q.shape[..2] != k.shape[..2] || q.shape[3] != k.shape[3] {
        return Err(mismatch(&q.shape, &k.shape, "equal batch, heads and width of queries and keys"));
    }
    if k.shape[..3] != v.shape[..3] {
        return Err(mismatch(&k.shape, &v.shape, "equal batch, heads and tokens of keys and values"));
    }
    if *mask != Structural::None && q.shape[2] != k.shape[2] {
        return Err(mismatch(&q.shape, &k.shape, "as many queries as keys under a structural mask"));
    }
    let (batch, keys) = (q.shape[0], k.shape[2]);
    if *bias && ins[3].shape.as_slice() != [keys] && ins[3].shape.as_slice() != [batch, keys] {
        return Err(wrong(3, ins[3], "a key bias of shape (keys) or (batch, keys)"));
    }
    let mut out = q.shape.clone();
    out[3] = v.shape[3];
    let rows = Meta { kind: wide(q.kind), ..q.with_shape(&q.shape[..3]) };
    Ok(smallvec![q.with_shape(out), rows])
}

/// Which keys each query sees, (N,N) of booleans; `None` for all.
fn visible(mask: Structural, n: i64, device: tch::Device) -> Result<Option<tch::Tensor>, OpErrorKind> {
    let all = || tch::Tensor::f_ones([n, n], (Kind::Bool, device));
    Ok(match mask {
        Structural::None => None,
        Structural::Causal => Some(all()?.f_tril(0)?),
        Structural::Window(w) => Some(all()?.f_tril(w)?.f_triu(-w)?),
    })
}

/// 1/√Dh
pub(super) fn scale(q: &tch::Tensor) -> f64 {
    1.0 / (q.size()[3].max(1) as f64).sqrt()
}

/// (B,H,Nq,Nk): q kᵀ/√Dh plus bias, −∞ where hidden; f32 at least.
fn scores(
    q: &tch::Tensor,
    k: &tch::Tensor,
    bias: Option<&tch::Tensor>,
    mask: Structural,
) -> Result<tch::Tensor, OpErrorKind> {
    // Kernels multiply 16-bit numbers exactly and add in f32: so must what they are measured by.
    let (q, k) = (q.f_to_kind(wide(q.kind()))?, k.f_to_kind(wide(k.kind()))?);
    let mut scores = q.f_mul_scalar(scale(&q))?.f_matmul(&k.f_transpose(-2, -1)?)?;
    if let Some(bias) = bias {
        let bias = if bias.dim() == 2 { bias.f_unsqueeze(1)?.f_unsqueeze(1)? } else { bias.shallow_clone() };
        scores = scores.f_add_(&bias)?;
    }
    if let Some(keep) = visible(mask, q.size()[2], q.device())? {
        scores = scores.f_masked_fill_(&keep.f_logical_not()?, f64::NEG_INFINITY)?;
    }
    Ok(scores)
}

fn launch(op: &Op, l: &Launch<'_>) -> Launched {
    let Op::Sdpa { mask, bias } = op else { unreachable!("row of another operation") };
    let (q, k, v) = (l.at(0), l.at(1), l.at(2));
    let scores = scores(q, k, bias.then(|| l.at(3)), *mask)?;
    let lse = scores.f_logsumexp(-1i64, false)?;
    let weights = scores.f_internal_softmax(-1, false)?.f_to_kind(v.kind())?;
    Ok(smallvec![weights.f_matmul(v)?, lse])
}

fn vjp(v: &Vjp<'_>) -> Result<Grads, OpError> {
    let Op::Sdpa { mask, bias } = *v.op() else { unreachable!("row of another operation") };
    let dbias = bias && v.needs(3);
    let mut ins: SmallVec<[&Tensor; 7]> =
        smallvec![v.g()?, v.input(0)?, v.input(1)?, v.input(2)?, v.output(0)?, v.output(1)?];
    if bias {
        ins.push(v.input(3)?);
    }
    let mut grads: Grads = v.call_all(Op::SdpaBackward { mask, bias, dbias }, &ins)?.into_iter().map(Some).collect();
    grads.resize(v.arity(), None);
    Ok(grads)
}

fn shape_backward(op: &Op, ins: &[&Meta]) -> Inferred {
    let Op::SdpaBackward { dbias, .. } = op else { unreachable!("row of another operation") };
    let mut metas: Metas = ins[1..4].iter().map(|m| (*m).clone()).collect();
    if *dbias {
        metas.push(ins[6].clone());
    }
    Ok(metas)
}

fn launch_backward(op: &Op, l: &Launch<'_>) -> Launched {
    let Op::SdpaBackward { mask, bias, dbias } = op else { unreachable!("row of another operation") };
    let (g, q, k, v, out, lse) = (l.at(0), l.at(1), l.at(2), l.at(3), l.at(4), l.at(5));
    let weights = scores(q, k, bias.then(|| l.at(6)), *mask)?.f_sub_(&lse.f_unsqueeze(-1)?)?.f_exp_()?;
    let dv = weights.f_to_kind(g.kind())?.f_transpose(-2, -1)?.f_matmul(g)?;
    // Σ over keys of weight · its gradient, which is the same as Σ over the width of gradient · result.
    let along = g.f_mul(out)?.f_to_kind(wide(q.kind()))?.f_sum_dim_intlist(-1, true, None)?;
    let dweights = g.f_matmul(&v.f_transpose(-2, -1)?)?.f_to_kind(wide(q.kind()))?;
    let dscores = dweights.f_sub(&along)?.f_mul_(&weights)?;
    let low = dscores.f_to_kind(q.kind())?;
    let dq = low.f_matmul(k)?.f_mul_scalar_(scale(q))?;
    let dk = low.f_transpose(-2, -1)?.f_matmul(q)?.f_mul_scalar_(scale(q))?;
    let mut outs: crate::backend::Outs = SmallVec::from_iter([dq, dk, dv]);
    if *dbias {
        let over: &[i64] = if l.at(6).dim() == 2 { &[1, 2] } else { &[0, 1, 2] };
        outs.push(dscores.f_sum_dim_intlist(over, false, None)?.f_to_kind(l.at(6).kind())?);
    }
    Ok(outs)
}

fn samples(d: &mut Draw) -> Vec<Sample> {
    let (b, n, m, w) = (d.size(1, 2), d.size(3, 5), d.size(6, 7), d.size(2, 4));
    let op = |mask, bias| Op::Sdpa { mask, bias };
    vec![
        sample(op(Structural::None, false), [normal(&[b, 3, n, w]), normal(&[b, 3, m, w]), normal(&[b, 3, m, w + 1])]),
        sample(
            op(Structural::None, true),
            [normal(&[b, 2, n, w]).transposed(), normal(&[b, 2, m, w]), normal(&[b, 2, m, w]).strided(), normal(&[m])],
        ),
        sample(
            op(Structural::None, true),
            [normal(&[2, 1, n, w]), normal(&[2, 1, m, w]), normal(&[2, 1, m, w]), normal(&[2, m])],
        ),
        sample(op(Structural::Causal, false), [normal(&[b, 2, m, w]), normal(&[b, 2, m, w]), normal(&[b, 2, m, w])]),
        sample(op(Structural::Window(1), false), [normal(&[b, 2, n, w]), normal(&[b, 2, n, w]), normal(&[b, 2, n, w])]),
        sample(op(Structural::None, false), [normal(&[0, 2, n, w]), normal(&[0, 2, n, w]), normal(&[0, 2, n, w])]),
    ]
}

fn lower(op: &Op, l: &mut Lower<'_>) -> Lowered {
    let Op::Sdpa { mask, bias } = op else { unreachable!("row of another operation") };
    let (q, k, v) = (l.at(0), l.at(1), l.at(2));
    let (width, queries, keys) = (l.size(q, 3)?, l.size(q, 2)?, l.size(k, 2)?);
    let q = l.scaled(q, 1.0 / (width as f64).sqrt())?;
    let k = l.swapped(k, 2, 3)?;
    let mut scores = l.emit(Plain::MatMul, &[q, k])?;
    if *bias {
        let bias = l.at(3);
        let bias = match l.shape(bias).as_slice() {
            &[batch, keys] => l.reshape(bias, &[batch, Dim::ONE, Dim::ONE, keys])?,
            _ => bias,
        };
        scores = l.add(scores, bias)?;
    }
    let seen = |i: u64, j: u64| match *mask {
        Structural::None => true,
        Structural::Causal => j <= i,
        Structural::Window(w) => i.abs_diff(j) <= w.unsigned_abs(),
    };
    if *mask != Structural::None {
        let keep: Vec<u8> = (0..queries).flat_map(|i| (0..keys).map(move |j| u8::from(seen(i, j)))).collect();
        let keep = l.truths(&[queries, keys], keep)?;
        let never = l.number(f64::NEG_INFINITY);
        scores = l.emit(Plain::Where, &[keep, scores, never])?;
    }
    let shares = l.emit(Plain::Softmax, &[scores])?;
    only(l.emit(Plain::MatMul, &[shares, v])?)
}
