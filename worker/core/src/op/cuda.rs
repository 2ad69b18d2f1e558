//! The own CUDA kernels as entries of the table of operations: what each takes, and how it is called.
//!
//! **Invariant:** `fits` looks at kinds, shapes and devices only. Strides and alignment need no condition: the kernels copy
//! what is not dense and load element by element what is not aligned.

use super::Op;
use super::attention::scale;
use super::attr::{Dir, F64Bits, Score, Structural};
use super::decay::bounds;
use super::norm::stats;
use super::random::keep_threshold;
use super::row::{Kernel, Launch, Launched, Tolerance};
use crate::backend::cuda::attention::{self, AttentionInputs, AttentionMask};
use crate::backend::cuda::cross_entropy::{self, CrossEntropyBackward};
use crate::backend::cuda::gated_norm::{self, GatedNorm};
use crate::backend::cuda::retention::{RetentionScan, RetentionScanBackward};
use crate::backend::cuda::{self, Element, dropout, gated, norm, quantize, retention, retention_decay};
use smallvec::{SmallVec, smallvec};
use tch::{Device, Kind, Tensor};

/// Sdpa.
pub(super) const ATTENTION: Kernel = entry("cuda.attention", |op, l| fits_attention(op, l, 0), launch_attention);
/// SdpaBackward.
pub(super) const ATTENTION_BACKWARD: Kernel =
    entry("cuda.attention_backward", |op, l| fits_attention(op, l, 1), launch_attention_backward);
pub(super) const CROSS_ENTROPY: Kernel = entry("cuda.cross_entropy", |_, l| classes_fit(l.at(0)), launch_cross_entropy);
/// CrossEntropyBackward.
pub(super) const CROSS_ENTROPY_BACKWARD: Kernel =
    entry("cuda.cross_entropy_backward", |_, l| classes_fit(l.at(1)), launch_cross_entropy_backward);

/// Whether a kernel takes the operands; if not, why.
pub(super) type Fit = Result<(), &'static str>;

/// An entry with what most have in common.
pub(super) const fn entry(
    id: &'static str,
    fits: fn(&Op, &Launch<'_>) -> Fit,
    launch: fn(&Op, &Launch<'_>) -> Launched,
) -> Kernel {
    Kernel { id, fits, launch, tolerance: Tolerance::Reduction, deterministic: true }
}

/// Dropout and DropPath.
pub(super) const DROPOUT: Kernel =
    Kernel { tolerance: Tolerance::Exact, ..entry("cuda.dropout", |_, l| on_device(l.at(0)), launch_dropout) };
pub(super) const RETENTION: Kernel = entry("cuda.retention", |_, l| on_device(l.at(0)), launch_retention);
/// RetentionBackward.
pub(super) const RETENTION_BACKWARD: Kernel =
    entry("cuda.retention_backward", |_, l| on_device(l.at(0)), launch_retention_backward);
/// RetentionDecay.
pub(super) const RETENTION_DECAY: Kernel = entry(
    "cuda.retention_decay",
    |_, l| on_device(l.at(0)),
    |op, l| Ok(smallvec![retention_decay::forward(l.at(0), bounds(op))?]),
);
/// RetentionDecayBackward.
pub(super) const RETENTION_DECAY_BACKWARD: Kernel = entry(
    "cuda.retention_decay_backward",
    |_, l| on_device(l.at(1)),
    |op, l| Ok(smallvec![retention_decay::backward(l.at(0), l.at(1), bounds(op))?]),
);
/// LayerNorm and RmsNorm.
pub(super) const NORM: Kernel = entry("cuda.norm", |_, l| rows_fit(l.at(0)), launch_norm);
/// LayerNormBackward and RmsNormBackward.
pub(super) const NORM_BACKWARD: Kernel = entry("cuda.norm_backward", |_, l| rows_fit(l.at(1)), launch_norm_backward);
pub(super) const ADD_NORM: Kernel = entry("cuda.add_norm", |_, l| rows_fit(l.at(0)), launch_add_norm);
/// AddNormBackward.
pub(super) const ADD_NORM_BACKWARD: Kernel =
    entry("cuda.add_norm_backward", |_, l| rows_fit(l.at(1)), launch_add_norm_backward);
pub(super) const GATED_NORM: Kernel = entry("cuda.gated_norm", |_, l| rows_fit(l.at(0)), launch_gated_norm);
/// GatedNormBackward.
pub(super) const GATED_NORM_BACKWARD: Kernel =
    entry("cuda.gated_norm_backward", |_, l| rows_fit(l.at(1)), launch_gated_norm_backward);
/// SiluMul.
pub(super) const SILU_MUL: Kernel =
    entry("cuda.silu_mul", |_, l| on_device(l.at(0)), |_, l| Ok(smallvec![gated::silu_mul(l.at(0), l.at(1))?]));
/// SiluMulBackward.
pub(super) const SILU_MUL_BACKWARD: Kernel = entry(
    "cuda.silu_mul_backward",
    |_, l| on_device(l.at(1)),
    |_, l| Ok(SmallVec::from(gated::silu_mul_backward(l.at(0), l.at(1), l.at(2))?)),
);
/// SwiGlu.
pub(super) const SWIGLU: Kernel =
    entry("cuda.swiglu", |_, l| on_device(l.at(0)), |_, l| Ok(smallvec![gated::swiglu(l.at(0))?]));
/// SwiGluBackward.
pub(super) const SWIGLU_BACKWARD: Kernel = entry(
    "cuda.swiglu_backward",
    |_, l| on_device(l.at(1)),
    |_, l| Ok(smallvec![gated::swiglu_backward(l.at(0), l.at(1))?]),
);
/// Quantize.
pub(super) const QUANTIZE: Kernel =
    Kernel { tolerance: Tolerance::Exact, ..entry("cuda.quantize", |_, l| on_device(l.at(0)), launch_quantize) };

/// Whether the own kernels run where `x` is.
pub(super) fn present(x: &Tensor) -> Fit {
    if !matches!(x.device(), Device::Cuda(_)) {
        return Err("not on a CUDA device");
    }
    if cuda::is_present() { Ok(()) } else { Err("the CUDA driver or NVRTC was not found") }
}

/// Whether they take its kind too.
pub(super) fn on_device(x: &Tensor) -> Fit {
    if Element::of(x.kind()).is_none() {
        return Err("neither f32, bf16 nor f16");
    }
    present(x)
}

fn launch_dropout(op: &Op, l: &Launch<'_>) -> Launched {
    let (p, site, rows) = match op {
        Op::Dropout { p, site } => (p.get(), *site, false),
        Op::DropPath { p, site } => (p.get(), *site, true),
        _ => unreachable!("row of another operation"),
    };
    let threshold = keep_threshold(p) as u32;
    let scale = 1.0 / (1.0 - p);
    Ok(smallvec![dropout::dropout(&dropout::Dropout { x: l.at(0), key: l.at(1), site, threshold, scale, rows })?])
}

fn launch_retention(op: &Op, l: &Launch<'_>) -> Launched {
    let Op::Retention { dir, state } = op else { unreachable!("row of another operation") };
    let both = *dir == Dir::Bidirectional;
    let scan = RetentionScan { v: l.at(0), lambda: l.at(1), state: state.then(|| l.at(2)), both };
    let (y, last) = retention::scan(&scan)?;
    Ok(std::iter::once(y).chain(last).collect())
}

fn launch_retention_backward(op: &Op, l: &Launch<'_>) -> Launched {
    let Op::RetentionBackward { dir, state, gstate } = op else { unreachable!("row of another operation") };
    let both = *dir == Dir::Bidirectional;
    let scan = RetentionScan { v: l.at(0), lambda: l.at(1), state: state.then(|| l.at(4)), both };
    let gstate = gstate.then(|| l.at(l.ins.len() - 1));
    let (dv, dlambda, dstate) =
        retention::scan_backward(&RetentionScanBackward { scan, y: l.at(2), g: l.at(3), gstate })?;
    Ok([dv, dlambda].into_iter().chain(dstate.filter(|_| *state)).collect())
}

fn rows_fit(x: &Tensor) -> Fit {
    on_device(x)?;
    match x.size().last() {
        Some(1..=norm::WIDTH_MAX) => Ok(()),
        _ => Err("rows are empty or wider than 16384"),
    }
}

fn launch_add_norm(op: &Op, l: &Launch<'_>) -> Launched {
    let Op::AddNorm { layer, eps, low } = op else { unreachable!("row of another operation") };
    let bias = layer.then(|| l.at(3));
    let weight = Some(l.at(2));
    let residual = Some(l.at(1));
    let n = norm::Norm { x: l.at(0), residual, weight, bias, centred: *layer, eps: eps.get(), low: *low };
    let made = norm::norm(&n)?;
    let kind = l.at(0).kind();
    let rstd = if *layer { made.rstd } else { made.rstd.f_to_kind(kind)? };
    Ok(made.sum.into_iter().chain([made.y]).chain(made.mean).chain([rstd]).collect())
}

fn launch_add_norm_backward(op: &Op, l: &Launch<'_>) -> Launched {
    let Op::AddNormBackward { layer, gsum, low } = op else { unreachable!("row of another operation") };
    let stats = stats(*layer);
    let made = norm::norm_backward(&norm::NormBackward {
        g: l.at(0),
        gsum: gsum.then(|| l.at(l.ins.len() - 1)),
        x: l.at(1),
        mean: layer.then(|| l.at(2)),
        rstd: l.at(1 + stats),
        weight: Some(l.at(2 + stats)),
        bias: *layer,
        low: *low,
    })?;
    Ok(std::iter::once(made.dx).chain(made.dw).chain(made.db).chain(made.dbranch).collect())
}

fn launch_norm(op: &Op, l: &Launch<'_>) -> Launched {
    let (affine, eps, centred) = match op {
        Op::LayerNorm { affine, eps } => (*affine, eps.get(), true),
        Op::RmsNorm { affine, eps } => (*affine, eps.get(), false),
        _ => unreachable!("row of another operation"),
    };
    let weight = affine.then(|| l.at(1));
    let bias = (affine && centred).then(|| l.at(2));
    let made = norm::norm(&norm::Norm { x: l.at(0), residual: None, weight, bias, centred, eps, low: None })?;
    let Some(mean) = made.mean else {
        // The plain reference keeps the statistics of RMS norm in the operand's kind.
        return Ok(smallvec![made.y, made.rstd.f_to_kind(l.at(0).kind())?]);
    };
    Ok(smallvec![made.y, mean, made.rstd])
}

fn launch_norm_backward(op: &Op, l: &Launch<'_>) -> Launched {
    let (affine, centred) = match op {
        Op::LayerNormBackward { affine } => (*affine, true),
        Op::RmsNormBackward { affine } => (*affine, false),
        _ => unreachable!("row of another operation"),
    };
    let stats = stats(centred);
    let made = norm::norm_backward(&norm::NormBackward {
        g: l.at(0),
        gsum: None,
        x: l.at(1),
        mean: centred.then(|| l.at(2)),
        rstd: l.at(1 + stats),
        weight: affine.then(|| l.at(2 + stats)),
        bias: centred,
        low: None,
    })?;
    Ok(std::iter::once(made.dx).chain(made.dw).chain(made.db).collect())
}

/// s, q, gate and the weights of an operation or its reverse.
fn gated_norm_of<'a>(first: &[&'a Tensor], weights: &[&'a Tensor], low: Option<Kind>) -> GatedNorm<'a> {
    let bias = weights.get(1).copied();
    GatedNorm { s: first[0], q: first[1], gate: first[2], weight: weights[0], bias, low }
}

fn launch_gated_norm(op: &Op, l: &Launch<'_>) -> Launched {
    let Op::GatedNorm { eps, low, .. } = op else { unreachable!("row of another operation") };
    let (y, mean, rstd) = gated_norm::gated_norm(&gated_norm_of(&l.ins[..3], &l.ins[3..], *low), eps.get())?;
    // The plain reference keeps the statistics of RMS norm in the operand's kind.
    let rstd = if mean.is_some() { rstd } else { rstd.f_to_kind(l.at(0).kind())? };
    Ok([y].into_iter().chain(mean).chain([rstd]).collect())
}

fn launch_gated_norm_backward(op: &Op, l: &Launch<'_>) -> Launched {
    let Op::GatedNormBackward { layer, low } = op else { unreachable!("row of another operation") };
    let at = 4 + stats(*layer);
    let n = gated_norm_of(&l.ins[1..4], &l.ins[at..], *low);
    let made = gated_norm::gated_norm_backward(&n, l.at(0), layer.then(|| l.at(4)), l.at(at - 1))?;
    Ok([made.ds, made.dq, made.dgate, made.dw].into_iter().chain(made.db).collect())
}

fn launch_quantize(op: &Op, l: &Launch<'_>) -> Launched {
    let Op::Quantize { to } = op else { unreachable!("row of another operation") };
    let made = quantize::quantize(l.at(0), *to)?;
    Ok(smallvec![made.q, made.transposed, made.scale])
}

/// q, k, v begin at operand `at`.
fn fits_attention(op: &Op, l: &Launch<'_>, at: usize) -> Fit {
    if !matches!(op, Op::Sdpa { .. } | Op::SdpaBackward { .. }) {
        return Err("another operation");
    }
    let q = l.at(at).size();
    let k = l.at(at + 1).size();
    let v = l.at(at + 2).size();
    if q[3] != v[3] || !(1..=attention::HEAD_MAX).contains(&q[3]) {
        return Err("takes heads of 1 to 128, of one width for keys and values");
    }
    if k[2] == 0 {
        return Err("takes at least one key");
    }
    on_device(l.at(at))
}

fn mask_of(mask: Structural) -> AttentionMask {
    match mask {
        Structural::None => AttentionMask::NONE,
        Structural::Causal => AttentionMask { causal: true, ..AttentionMask::NONE },
        Structural::Window(w) => AttentionMask { window: Some(w), ..AttentionMask::NONE },
        Structural::Dilated { window, dilation, causal } => AttentionMask { causal, window: Some(window), dilation },
    }
}

fn attention_of<'a>(
    [q, k, v]: [&'a Tensor; 3],
    bias: Option<&'a Tensor>,
    mask: Structural,
    score: Score,
) -> AttentionInputs<'a> {
    let cap = score.cap.map(F64Bits::get);
    let alibi = score.alibi;
    AttentionInputs { q, k, v, bias, mask: mask_of(mask), scale: scale(q), cap, alibi }
}

fn launch_attention(op: &Op, l: &Launch<'_>) -> Launched {
    let Op::Sdpa { mask, bias, score } = op else { unreachable!("row of another operation") };
    let call = attention_of([l.at(0), l.at(1), l.at(2)], bias.then(|| l.at(3)), *mask, *score);
    let (out, lse) = attention::attention(&call)?;
    Ok(smallvec![out, lse])
}

fn launch_attention_backward(op: &Op, l: &Launch<'_>) -> Launched {
    let Op::SdpaBackward { mask, bias, dbias, score } = op else { unreachable!("row of another operation") };
    let call = attention_of([l.at(1), l.at(2), l.at(3)], bias.then(|| l.at(6)), *mask, *score);
    let made = attention::attention_backward(&call, l.at(0), l.at(4), l.at(5), *dbias)?;
    Ok([made.dq, made.dk, made.dv].into_iter().chain(made.dbias).collect())
}

fn classes_fit(logits: &Tensor) -> Fit {
    if logits.size().get(1).is_none_or(|classes| *classes == 0) {
        return Err("takes at least one class");
    }
    on_device(logits)
}

fn launch_cross_entropy(op: &Op, l: &Launch<'_>) -> Launched {
    let Op::CrossEntropy { ignore } = op else { unreachable!("row of another operation") };
    let [loss, lse] = cross_entropy::cross_entropy(l.at(0), l.at(1), *ignore)?;
    Ok(smallvec![loss.f_sum(None)?, lse])
}

fn launch_cross_entropy_backward(op: &Op, l: &Launch<'_>) -> Launched {
    let Op::CrossEntropyBackward { ignore } = op else { unreachable!("row of another operation") };
    let logits = l.at(1);
    let targets = l.at(2);
    let lse = l.at(3);
    let call = CrossEntropyBackward { g: l.at(0), logits, targets, lse, ignored: *ignore, in_place: false };
    Ok(smallvec![cross_entropy::cross_entropy_backward(&call)?])
}
