//! The numbers that an optimizer step needs, and whether it is taken.

use super::{SCALARS, not_exported};
use crate::backend::cuda::adamw as cuda;
use crate::op::prelude::*;

attributes! {
    /// Operands: norm, count, rate, steps (written), skipped (written); f64, 0 axes. Results: six f32 ([`Scalar`](super::Scalar)); the norm of
    /// the mean gradient; 1 if the step is taken, else 0; the latter f64, 0 axes.
    StepScalars {
        beta1: F64Bits,
        beta2: F64Bits,
        decay: F64Bits,
        /// Largest norm of the mean gradient; 0 for no limit.
        clip: F64Bits,
    } => STEP_SCALARS;
}

/// Operations that make the numbers, with clipping.
const FLOPS: u64 = 28;
/// Added to the norm before dividing, as torch's clip_grad_norm_ does.
const CLIP_EPS: f64 = 1e-6;

const STEP_SCALARS: OpRow<StepScalars> = OpRow::backward("step_scalars", shape, launch)
    .writes(|_, i| i >= 3)
    .kernels(&[Kernel::new("cuda.step_scalars", fits, launch_cuda)])
    .flops(|_, _, _| FLOPS)
    .export(not_exported());

fn shape(_: &StepScalars, ins: &[&Meta]) -> Inferred {
    for (i, meta) in ins.iter().enumerate() {
        if meta.kind != Kind::Double || meta.rank() != 0 {
            return Err(wrong(i, meta, "an f64 scalar"));
        }
    }
    let numbers = Meta { shape: smallvec![SCALARS], kind: Kind::Float, device: ins[0].device };
    Ok(smallvec![numbers, ins[0].clone(), ins[0].clone()])
}

fn launch(op: &StepScalars, l: &Launch<'_>) -> Launched {
    let StepScalars { beta1, beta2, decay, clip } = op;
    let count = l.at(1);
    let rate = l.at(2);
    let mut steps = l.at(3).shallow_clone();
    let mut skipped = l.at(4).shallow_clone();
    let inverse = count.f_clamp_min(1.0)?.f_reciprocal()?;
    let norm = l.at(0).f_mul(&inverse)?;
    let taken = norm.f_isfinite()?.f_to_kind(Kind::Double)?;
    let _ = steps.f_add_(&taken)?;
    let _ = skipped.f_add_(&taken.f_neg()?.f_add_scalar(1.0)?)?;
    // max() keeps 0/0 away while no step has been taken.
    let power = |beta: f64| {
        let falling = steps.f_full_like(beta)?.f_pow(&steps)?.f_neg()?.f_add_scalar(1.0)?;
        falling.f_clamp_min(f64::MIN_POSITIVE)
    };
    let gradient = if clip.get() > 0.0 {
        let ratio = norm.f_add_scalar(CLIP_EPS)?.f_reciprocal()?.f_mul_scalar(clip.get())?;
        ratio.f_clamp_max(1.0)?.f_mul(&inverse)?
    } else {
        inverse
    };
    let gated = taken.f_mul(rate)?.f_neg()?;
    let numbers = [
        // 0 when the step is refused: a factor made of a norm that is not finite is none either.
        gradient.f_nan_to_num(0.0, 0.0, 0.0)?.f_mul(&taken)?,
        taken.f_mul_scalar(1.0 - beta1.get())?,
        taken.f_mul_scalar(1.0 - beta2.get())?,
        gated.f_mul_scalar(decay.get())?.f_add_scalar(1.0)?,
        gated.f_div(&power(beta1.get())?)?,
        power(beta2.get())?.f_rsqrt()?,
    ];
    Ok(smallvec![Raw::f_stack(&numbers, 0)?.f_to_kind(Kind::Float)?, norm, taken])
}

fn fits(_: &StepScalars, l: &Launch<'_>) -> Fit {
    if l.ins.iter().any(|x| x.device() != l.at(0).device()) {
        return Err("numbers on several devices");
    }
    present(l.at(0))
}

fn launch_cuda(op: &StepScalars, l: &Launch<'_>) -> Launched {
    let betas = (op.beta1.get(), op.beta2.get());
    let constants = cuda::Constants { betas, decay: op.decay.get(), clip: op.clip.get() };
    let made = cuda::step_scalars([l.at(0), l.at(1), l.at(2), l.at(3), l.at(4)], &constants)?;
    Ok(made.into_iter().collect())
}
