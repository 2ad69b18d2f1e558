//! The own CUDA kernels as entries of the table of operations: what each takes, and how it is called.
//!
//! **Invariant:** `fits` looks at kinds, shapes and devices only. Strides and alignment need no condition: the kernels copy
//! what is not dense and load element by element what is not aligned.

use super::Op;
use super::attr::Dir;
use super::random::keep_threshold;
use super::row::{Kernel, Launch, Launched, Tolerance};
use crate::backend::cuda::retention::{Scan, ScanBackward};
use crate::backend::cuda::{self, Element, adamw, dropout, gated, norm, retention};
use smallvec::{SmallVec, smallvec};
use tch::{Device, Kind, Tensor};

type Fit = Result<(), &'static str>;

const fn entry(
    id: &'static str,
    fits: fn(&Op, &Launch<'_>) -> Fit,
    launch: fn(&Op, &Launch<'_>) -> Launched,
) -> Kernel {
    Kernel { id, fits, launch, tolerance: Tolerance::Reduction, deterministic: true }
}

/// Dropout and DropPath.
pub(super) const DROPOUT: Kernel =
    Kernel { tolerance: Tolerance::Exact, ..entry("cuda.dropout", |_, l| on_device(l.at(0)), launch_dropout) };
/// Retention.
pub(super) const RETENTION: Kernel = entry("cuda.retention", |_, l| on_device(l.at(0)), launch_retention);
/// RetentionBackward.
pub(super) const RETENTION_BACKWARD: Kernel =
    entry("cuda.retention_backward", |_, l| on_device(l.at(0)), launch_retention_backward);
/// LayerNorm and RmsNorm.
pub(super) const NORM: Kernel = entry("cuda.norm", |_, l| rows_fit(l.at(0)), launch_norm);
/// LayerNormBackward and RmsNormBackward.
pub(super) const NORM_BACKWARD: Kernel = entry("cuda.norm_backward", |_, l| rows_fit(l.at(1)), launch_norm_backward);
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
/// GlobalNorm.
pub(super) const GLOBAL_NORM: Kernel =
    entry("cuda.global_norm", |_, l| arrays_fit(l.ins), |_, l| Ok(smallvec![adamw::norm(l.ins)?]));
/// StepScalars.
pub(super) const STEP_SCALARS: Kernel = entry("cuda.step_scalars", fits_scalars, launch_scalars);
/// AdamW.
pub(super) const ADAMW: Kernel = entry("cuda.adamw", fits_adamw, launch_adamw);

fn present(x: &Tensor) -> Fit {
    if !matches!(x.device(), Device::Cuda(_)) {
        return Err("not on a CUDA device");
    }
    if cuda::is_present() { Ok(()) } else { Err("the CUDA driver or NVRTC was not found") }
}

fn on_device(x: &Tensor) -> Fit {
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
    let (threshold, scale) = (keep_threshold(p) as u32, 1.0 / (1.0 - p));
    Ok(smallvec![dropout::dropout(&dropout::Dropout { x: l.at(0), key: l.at(1), site, threshold, scale, rows })?])
}

fn launch_retention(op: &Op, l: &Launch<'_>) -> Launched {
    let Op::Retention { dir, state } = op else { unreachable!("row of another operation") };
    let both = *dir == Dir::Bidirectional;
    let scan = Scan { v: l.at(0), lambda: l.at(1), state: state.then(|| l.at(2)), both };
    let (y, last) = retention::scan(&scan)?;
    Ok(std::iter::once(y).chain(last).collect())
}

fn launch_retention_backward(op: &Op, l: &Launch<'_>) -> Launched {
    let Op::RetentionBackward { dir, state, gstate } = op else { unreachable!("row of another operation") };
    let both = *dir == Dir::Bidirectional;
    let scan = Scan { v: l.at(0), lambda: l.at(1), state: state.then(|| l.at(4)), both };
    let gstate = gstate.then(|| l.at(l.ins.len() - 1));
    let (dv, dlambda, dstate) = retention::scan_backward(&ScanBackward { scan, y: l.at(2), g: l.at(3), gstate })?;
    Ok([dv, dlambda].into_iter().chain(dstate.filter(|_| *state)).collect())
}

fn rows_fit(x: &Tensor) -> Fit {
    on_device(x)?;
    match x.size().last() {
        Some(1..=norm::WIDTH_MAX) => Ok(()),
        _ => Err("rows are empty or wider than 16384"),
    }
}

fn launch_norm(op: &Op, l: &Launch<'_>) -> Launched {
    let (affine, eps, centred) = match op {
        Op::LayerNorm { affine, eps } => (*affine, eps.get(), true),
        Op::RmsNorm { affine, eps } => (*affine, eps.get(), false),
        _ => unreachable!("row of another operation"),
    };
    let weight = affine.then(|| l.at(1));
    let bias = (affine && centred).then(|| l.at(2));
    let made = norm::norm(&norm::Norm { x: l.at(0), residual: None, weight, bias, centred, eps })?;
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
    let stats = if centred { 2 } else { 1 };
    let made = norm::norm_backward(&norm::NormBackward {
        g: l.at(0),
        gsum: None,
        x: l.at(1),
        mean: centred.then(|| l.at(2)),
        rstd: l.at(1 + stats),
        weight: affine.then(|| l.at(2 + stats)),
        bias: centred,
    })?;
    Ok(std::iter::once(made.dx).chain(made.dw).chain(made.db).collect())
}

/// Dense arrays of one kind on one device.
fn arrays_fit(arrays: &[&Tensor]) -> Fit {
    let Some(first) = arrays.first() else { return Err("no arrays") };
    if arrays.iter().any(|x| x.kind() != first.kind() || x.device() != first.device() || !x.is_contiguous()) {
        return Err("arrays of several kinds or devices, or not dense");
    }
    on_device(first)
}

fn fits_scalars(_: &Op, l: &Launch<'_>) -> Fit {
    if l.ins.iter().any(|x| x.device() != l.at(0).device()) {
        return Err("numbers on several devices");
    }
    present(l.at(0))
}

fn launch_scalars(op: &Op, l: &Launch<'_>) -> Launched {
    let Op::StepScalars { beta1, beta2, decay, clip } = op else { unreachable!("row of another operation") };
    let constants = adamw::Constants { betas: (beta1.get(), beta2.get()), decay: decay.get(), clip: clip.get() };
    let made = adamw::step_scalars([l.at(0), l.at(1), l.at(2), l.at(3), l.at(4)], &constants)?;
    Ok(made.into_iter().collect())
}

fn fits_adamw(_: &Op, l: &Launch<'_>) -> Fit {
    let segments = || l.ins[1..].chunks_exact(4);
    let masters: SmallVec<[&Tensor; 12]> = segments().flat_map(|s| [s[0], s[2], s[3]]).collect();
    if masters.iter().any(|x| x.kind() != Kind::Float) {
        return Err("weights or moments other than f32");
    }
    arrays_fit(&masters)?;
    let grads: SmallVec<[&Tensor; 4]> = segments().map(|s| s[1]).collect();
    arrays_fit(&grads)
}

fn launch_adamw(op: &Op, l: &Launch<'_>) -> Launched {
    let Op::AdamW { eps, decays } = op else { unreachable!("row of another operation") };
    let segments = l.ins[1..].chunks_exact(4).zip(decays);
    let arrays: SmallVec<[adamw::Array<'_>; 4]> = segments
        .map(|(s, decays)| adamw::Array { p: s[0], grad: s[1], m: s[2], v: s[3], shadow: None, decays: *decays != 0 })
        .collect();
    adamw::adamw(&arrays, l.at(0), eps.get(), true)?;
    Ok(SmallVec::new())
}
