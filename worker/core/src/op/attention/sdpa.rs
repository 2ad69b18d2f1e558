//! Scaled dot-product attention with a structural mask, an additive key bias and modified scores.
//!
//! **Invariant:** one mask convention, true = keep, on every kernel.

use super::{AttentionCall, aten, scale};
use crate::backend::Outs;
use crate::op::attr::{Score, Structural};
use crate::op::prelude::*;
use enn_common::graph::{Dim, Id, Op as Plain, Unary};

attributes! {
    /// Operands: q (B,H,Nq,Dh), k and v (B,H,Nk,Dh), optional bias (Nk) or (B,Nk). Results: (B,H,Nq,Dh), and log Σ exp of each query's scores
    /// (B,H,Nq), f32 at least, as saved intermediate: the reverse rule makes the weights again from it, so that no (Nq,Nk) lives between
    /// forward and backward.
    Sdpa { mask: Structural, bias: bool, score: Score } => SDPA;
    /// The reverse. Operands: gradient, q, k, v, result, log Σ exp, bias.
    SdpaBackward {
        mask: Structural,
        bias: bool,
        /// Whether the gradient of the bias is asked for.
        dbias: bool,
        score: Score,
    } => SDPA_BACKWARD;
}

impl Sdpa {
    pub(super) fn call(&self) -> AttentionCall {
        AttentionCall { mask: self.mask, bias: self.bias, dbias: false, score: self.score, first: 0 }
    }
}

impl SdpaBackward {
    pub(super) fn call(&self) -> AttentionCall {
        AttentionCall { mask: self.mask, bias: self.bias, dbias: self.dbias, score: self.score, first: 1 }
    }
}

const SDPA: OpRow<Sdpa> = OpRow::forward("sdpa", shape, launch, vjp, samples)
    .saves(0b1111, 0b11)
    .product()
    .kernels(&aten::FORWARD)
    .class(Class::Low)
    // Two products, of the widths of q and v.
    .flops(|_, ins, outs| (2 * ins[1].shape[2] * (ins[0].numel() + outs[0].numel())).max(0).cast_unsigned())
    .lowers(lower);

const SDPA_BACKWARD: OpRow<SdpaBackward> = OpRow::backward("sdpa_backward", shape_backward, launch_backward)
    .product()
    .kernels(&aten::BACKWARD)
    // Five products, three of q's width and two of v's.
    .flops(|_, ins, _| (2 * ins[2].shape[2] * (3 * ins[1].numel() + 2 * ins[0].numel())).max(0).cast_unsigned());

fn shape(op: &Sdpa, ins: &[&Meta]) -> Inferred {
    let Sdpa { mask, bias, score } = *op;
    let q = ins[0];
    let k = ins[1];
    let v = ins[2];
    attributes(mask, score)?;
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
    if mask != Structural::None && q.shape[2] != k.shape[2] {
        return Err(mismatch(&q.shape, &k.shape, "as many queries as keys under a structural mask"));
    }
    if score.alibi && q.shape[2] != k.shape[2] {
        return Err(mismatch(&q.shape, &k.shape, "as many queries as keys under a bias by distance"));
    }
    let batch = q.shape[0];
    let keys = k.shape[2];
    if bias && ins[3].shape.as_slice() != [keys] && ins[3].shape.as_slice() != [batch, keys] {
        return Err(wrong(3, ins[3], "a key bias of shape (keys) or (batch, keys)"));
    }
    let mut out = q.shape.clone();
    out[3] = v.shape[3];
    let rows = Meta { kind: wide(q.kind), ..q.with_shape(&q.shape[..3]) };
    Ok(smallvec![q.with_shape(out), rows])
}

/// Largest soft cap.
const CAP_MAX: f64 = 1e38;

/// Refuses a window, a dilation or a cap without a meaning.
fn attributes(mask: Structural, score: Score) -> Result<(), OpErrorKind> {
    let (window, dilation) = match mask {
        Structural::None | Structural::Causal => (0, 1),
        Structural::Window(window) => (window, 1),
        Structural::Dilated { window, dilation, .. } => (window, dilation),
    };
    if window < 0 {
        return Err(OpErrorKind::Attribute { name: "window", found: window as f64, expected: "at least 0" });
    }
    if dilation < 1 {
        return Err(OpErrorKind::Attribute { name: "dilation", found: dilation as f64, expected: "at least 1" });
    }
    match score.cap.map(F64Bits::get) {
        // Kernels divide by it, and multiply it by ln 2's inverse, in f32.
        Some(cap) if cap <= 0.0 || cap > CAP_MAX || !(cap as f32).is_normal() => {
            Err(OpErrorKind::Attribute { name: "cap", found: cap, expected: "a positive number of f32, at most 1e38" })
        }
        _ => Ok(()),
    }
}

/// Differences of positions (N,N): the query's less the key's.
fn distances(n: i64, device: Device) -> Result<Raw, OpErrorKind> {
    let at = Raw::f_arange(n, (Kind::Int64, device))?;
    Ok(at.f_unsqueeze(1)?.f_sub(&at)?)
}

/// Which keys each query sees, (N,N) of booleans; `None` for all.
fn visible(mask: Structural, n: i64, device: Device) -> Result<Option<Raw>, OpErrorKind> {
    let all = || Raw::f_ones([n, n], (Kind::Bool, device));
    Ok(match mask {
        Structural::None => None,
        Structural::Causal => Some(all()?.f_tril(0)?),
        Structural::Window(w) => Some(all()?.f_tril(w.min(n))?.f_triu(-w.min(n))?),
        Structural::Dilated { window, dilation, causal } => {
            let near = all()?.f_tril(if causal { 0 } else { window.min(n) })?.f_triu(-window.min(n))?;
            Some(near.f_logical_and(&distances(n, device)?.f_remainder(dilation)?.f_eq(0)?)?)
        }
    })
}

/// (B,H,Nq,Nk): q kᵀ/√Dh, capped where there is a cap; f32 at least.
fn capped(q: &Raw, k: &Raw, score: Score) -> Result<Raw, OpErrorKind> {
    // Kernels multiply 16-bit numbers exactly and add in f32: so must what they are measured by.
    let q = q.f_to_kind(wide(q.kind()))?;
    let k = k.f_to_kind(wide(k.kind()))?;
    let mut scores = q.f_mul_scalar(scale(&q))?.f_matmul(&k.f_transpose(-2, -1)?)?;
    match score.cap.map(F64Bits::get) {
        Some(cap) => Ok(scores.f_div_scalar_(cap)?.f_tanh_()?.f_mul_scalar_(cap)?),
        None => Ok(scores),
    }
}

/// Turns `scores`, in place, into the operand of softmax: plus bias, less the distance's share, −∞ where hidden.
fn masked(mut scores: Raw, bias: Option<&Raw>, mask: Structural, score: Score) -> Result<Raw, OpErrorKind> {
    let heads = scores.size()[1];
    let queries = scores.size()[2];
    if let Some(bias) = bias {
        let bias = if bias.dim() == 2 { bias.f_unsqueeze(1)?.f_unsqueeze(1)? } else { bias.shallow_clone() };
        scores = scores.f_add_(&bias)?;
    }
    if score.alibi {
        let distance = distances(queries, scores.device())?.f_abs()?.f_to_kind(scores.kind())?;
        for head in 0..heads {
            let _ = scores.f_select(1, head)?.f_sub_(&distance.f_mul_scalar(Score::slope(head, heads))?)?;
        }
    }
    if let Some(keep) = visible(mask, queries, scores.device())? {
        scores = scores.f_masked_fill_(&keep.f_logical_not()?, f64::NEG_INFINITY)?;
    }
    Ok(scores)
}

fn launch(op: &Sdpa, l: &Launch<'_>) -> Launched {
    let q = l.at(0);
    let k = l.at(1);
    let v = l.at(2);
    let scores = masked(capped(q, k, op.score)?, op.bias.then(|| l.at(3)), op.mask, op.score)?;
    let lse = scores.f_logsumexp(-1i64, false)?;
    let weights = scores.f_internal_softmax(-1, false)?.f_to_kind(v.kind())?;
    Ok(smallvec![weights.f_matmul(v)?, lse])
}

fn vjp(op: &Sdpa, v: &Vjp<'_>) -> Result<Grads, OpError> {
    let Sdpa { mask, bias, score } = *op;
    let dbias = bias && v.needs(3);
    let mut ins: SmallVec<[&Tensor; 7]> =
        smallvec![v.g()?, v.input(0)?, v.input(1)?, v.input(2)?, v.output(0)?, v.output(1)?];
    if bias {
        ins.push(v.input(3)?);
    }
    let backward = SdpaBackward { mask, bias, dbias, score };
    let mut grads: Grads = v.call_all(backward, &ins)?.into_iter().map(Some).collect();
    grads.resize(v.arity(), None);
    Ok(grads)
}

fn shape_backward(op: &SdpaBackward, ins: &[&Meta]) -> Inferred {
    let mut metas: Metas = ins[1..4].iter().map(|m| (*m).clone()).collect();
    if op.dbias {
        metas.push(ins[6].clone());
    }
    Ok(metas)
}

fn launch_backward(op: &SdpaBackward, l: &Launch<'_>) -> Launched {
    let SdpaBackward { mask, bias, dbias, score } = *op;
    let g = l.at(0);
    let q = l.at(1);
    let k = l.at(2);
    let v = l.at(3);
    let out = l.at(4);
    let lse = l.at(5);
    let capped = capped(q, k, score)?;
    // 1 − tanh², the cap's derivative, before the scores are written over.
    let slope =
        score.cap.map(|cap| capped.f_div_scalar(cap.get())?.f_square()?.f_neg()?.f_add_scalar(1.0)).transpose()?;
    let mut weights = masked(capped, bias.then(|| l.at(6)), mask, score)?;
    weights = weights.f_sub_(&lse.f_unsqueeze(-1)?)?.f_exp_()?;
    let dv = weights.f_to_kind(g.kind())?.f_transpose(-2, -1)?.f_matmul(g)?;
    // Σ over keys of weight · its gradient, which is the same as Σ over the width of gradient · result.
    let along = g.f_mul(out)?.f_to_kind(wide(q.kind()))?.f_sum_dim_intlist(-1, true, None)?;
    let dweights = g.f_matmul(&v.f_transpose(-2, -1)?)?.f_to_kind(wide(q.kind()))?;
    let dscores = dweights.f_sub(&along)?.f_mul_(&weights)?;
    let low = match &slope {
        Some(slope) => dscores.f_mul(slope)?.f_to_kind(q.kind())?,
        None => dscores.f_to_kind(q.kind())?,
    };
    let dq = low.f_matmul(k)?.f_mul_scalar_(scale(q))?;
    let dk = low.f_transpose(-2, -1)?.f_matmul(q)?.f_mul_scalar_(scale(q))?;
    let mut outs: Outs = SmallVec::from_iter([dq, dk, dv]);
    if dbias {
        let over: &[i64] = if l.at(6).dim() == 2 { &[1, 2] } else { &[0, 1, 2] };
        outs.push(dscores.f_sum_dim_intlist(over, false, None)?.f_to_kind(l.at(6).kind())?);
    }
    Ok(outs)
}

fn samples(d: &mut SampleRng) -> Vec<Sample> {
    let b = d.size(1, 2);
    let n = d.size(3, 5);
    let m = d.size(6, 7);
    let w = d.size(2, 4);
    let op = |mask, bias| Sdpa { mask, bias, score: Score::PLAIN };
    let scored =
        |mask, bias, cap: Option<f64>, alibi| Sdpa { mask, bias, score: Score { cap: cap.map(F64Bits::from), alibi } };
    let dilated = |window, causal| Structural::Dilated { window, dilation: 2, causal };
    let alike = |heads| [normal(&[b, heads, m, w]), normal(&[b, heads, m, w]), normal(&[b, heads, m, w])];
    let biased = |heads, bias: &[i64]| alike(heads).into_iter().chain([normal(bias)]).collect::<Vec<_>>();
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
        sample(op(dilated(4, false), false), alike(2)),
        sample(op(dilated(5, true), true), biased(1, &[m])),
        // Caps that bend what normal numbers give.
        sample(
            scored(Structural::None, true, Some(0.7), false),
            [normal(&[b, 2, n, w]), normal(&[b, 2, m, w]), normal(&[b, 2, m, w]).strided(), normal(&[b, m])],
        ),
        sample(scored(Structural::Causal, false, Some(1.3), false), alike(2)),
        sample(scored(Structural::None, false, None, true), alike(4)),
        sample(scored(Structural::Causal, true, None, true), biased(3, &[m])),
        sample(scored(dilated(4, false), true, Some(0.9), true), biased(3, &[b, m])),
    ]
}

fn lower(op: &Sdpa, l: &mut Lower<'_>) -> Lowered {
    let Sdpa { mask, bias, score } = *op;
    let q = l.at(0);
    let k = l.at(1);
    let v = l.at(2);
    let width = l.size(q, 3)?;
    let queries = l.size(q, 2)?;
    let keys = l.size(k, 2)?;
    let q = l.scaled(q, 1.0 / (width as f64).sqrt())?;
    let k = l.swapped(k, 2, 3)?;
    let mut scores = l.emit(Plain::MatMul, &[q, k])?;
    if let Some(cap) = score.cap.map(F64Bits::get) {
        let bent = l.scaled(scores, 1.0 / cap)?;
        let bent = l.unary(Unary::Tanh, bent)?;
        scores = l.scaled(bent, cap)?;
    }
    if bias {
        let bias = l.at(3);
        let bias = match l.shape(bias).as_slice() {
            &[batch, keys] => l.reshape(bias, &[batch, Dim::ONE, Dim::ONE, keys])?,
            _ => bias,
        };
        scores = l.add(scores, bias)?;
    }
    if score.alibi {
        let heads = l.size(q, 1)?;
        let lost = distance_bias(l, heads, queries)?;
        scores = l.add(scores, lost)?;
    }
    let seen = |i: u64, j: u64| match mask {
        Structural::None => true,
        Structural::Causal => j <= i,
        Structural::Window(w) => i.abs_diff(j) <= w.unsigned_abs(),
        Structural::Dilated { window, dilation, causal } => {
            let far = i.abs_diff(j);
            far <= window.unsigned_abs() && far.is_multiple_of(dilation.unsigned_abs()) && (j <= i || !causal)
        }
    };
    if mask != Structural::None {
        let keep: Vec<u8> = (0..queries).flat_map(|i| (0..keys).map(move |j| u8::from(seen(i, j)))).collect();
        let keep = l.truths(&[queries, keys], keep)?;
        let never = l.number(f64::NEG_INFINITY);
        scores = l.emit(Plain::Where, &[keep, scores, never])?;
    }
    let shares = l.emit(Plain::Softmax, &[scores])?;
    only(l.emit(Plain::MatMul, &[shares, v])?)
}

/// ALiBi as a product of two constants, (H,1,1) and (N,N): H times smaller than the bias itself.
fn distance_bias(l: &mut Lower<'_>, heads: u64, tokens: u64) -> Result<Id, LowerError> {
    let slopes: Vec<f32> =
        (0..heads).map(|head| -Score::slope(head.cast_signed(), heads.cast_signed()) as f32).collect();
    let far: Vec<f32> = (0..tokens).flat_map(|i| (0..tokens).map(move |j| i.abs_diff(j) as f32)).collect();
    let slopes = l.floats(&[heads, 1, 1], &slopes)?;
    let far = l.floats(&[tokens, tokens], &far)?;
    l.mul(slopes, far)
}
