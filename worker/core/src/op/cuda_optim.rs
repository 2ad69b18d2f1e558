//! The own CUDA kernels of the optimizer as entries of the table of operations: many arrays in one launch.
//!
//! **Invariant:** as in `cuda`, `fits` looks at kinds, shapes and devices only; these kernels write in place, so that what is
//! not dense is refused, not copied.

use super::Op;
use super::cuda::{Fit, entry, on_device, present};
use super::optim::{averages, segments};
use super::row::{Kernel, Launch, Launched, Tolerance};
use crate::backend::cuda::adamw;
use smallvec::{SmallVec, smallvec};
use tch::{Kind, Tensor};

pub(super) const GLOBAL_NORM: Kernel = entry("cuda.global_norm", |_, l| arrays_fit(measured(l).1), launch_norm);
pub(super) const STEP_SCALARS: Kernel = entry("cuda.step_scalars", fits_scalars, launch_scalars);
pub(super) const ADAMW: Kernel = entry("cuda.adamw", fits_adamw, launch_adamw);
pub(super) const AVERAGE: Kernel = entry("cuda.average", fits_average, launch_average);
/// Zero.
pub(super) const ZERO: Kernel =
    Kernel { tolerance: Tolerance::Exact, ..entry("cuda.zero", |_, l| arrays_fit(l.ins), launch_zero) };

/// The norm of what was measured before, if there is one, and the arrays.
fn measured<'l, 't>(l: &'l Launch<'t>) -> (Option<&'t Tensor>, &'l [&'t Tensor]) {
    match l.ins {
        [before, arrays @ ..] if before.kind() == Kind::Double && before.dim() == 0 && !arrays.is_empty() => {
            (Some(before), arrays)
        }
        arrays => (None, arrays),
    }
}

fn launch_norm(_: &Op, l: &Launch<'_>) -> Launched {
    let (before, arrays) = measured(l);
    Ok(smallvec![adamw::norm(before, arrays)?])
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

fn fits_adamw(op: &Op, l: &Launch<'_>) -> Fit {
    let Op::AdamW { .. } = op else { return Err("another operation") };
    let masters: SmallVec<[&Tensor; 16]> =
        segments(op, l).flat_map(|s| [Some(s.weight), Some(s.first), Some(s.second), s.average]).flatten().collect();
    if masters.iter().any(|x| x.kind() != Kind::Float) {
        return Err("weights, moments or averages other than f32");
    }
    arrays_fit(&masters)?;
    let grads: SmallVec<[&Tensor; 4]> = segments(op, l).map(|s| s.grad).collect();
    arrays_fit(&grads)?;
    let copies: SmallVec<[&Tensor; 4]> = segments(op, l).filter_map(|s| s.shadow).collect();
    if copies.is_empty() {
        return Ok(());
    }
    if !matches!(copies[0].kind(), Kind::BFloat16 | Kind::Half) {
        return Err("copies of the weights other than bf16 and f16");
    }
    arrays_fit(&copies)
}

fn launch_adamw(op: &Op, l: &Launch<'_>) -> Launched {
    let Op::AdamW { eps, decays, .. } = op else { unreachable!("row of another operation") };
    let arrays: SmallVec<[adamw::FlatArray<'_>; 4]> = segments(op, l)
        .zip(decays)
        .map(|(s, decays)| adamw::FlatArray {
            p: s.weight,
            grad: s.grad,
            m: s.first,
            v: s.second,
            shadow: s.shadow,
            average: s.average,
            decays: *decays != 0,
        })
        .collect();
    let share = averages(op).map(|decay| adamw::average_share(l.at(1), l.at(2), decay)).transpose()?;
    adamw::adamw(&arrays, l.at(0), share.as_ref(), eps.get())?;
    Ok(SmallVec::new())
}

fn fits_average(op: &Op, l: &Launch<'_>) -> Fit {
    if !matches!(op, Op::Average { .. }) {
        return Err("another operation");
    }
    if l.ins[2..].iter().any(|x| x.kind() != Kind::Float) {
        return Err("averages or weights other than f32");
    }
    if l.at(0).device() != l.ins[l.ins.len() - 1].device() {
        return Err("the count and the averages on several devices");
    }
    arrays_fit(&l.ins[2..])
}

fn launch_average(op: &Op, l: &Launch<'_>) -> Launched {
    let Op::Average { decay } = op else { unreachable!("row of another operation") };
    let pairs: Vec<[&Tensor; 2]> = l.ins[2..].chunks_exact(2).map(|pair| [pair[0], pair[1]]).collect();
    adamw::average(&pairs, &adamw::average_share(l.at(0), l.at(1), decay.get())?)?;
    Ok(SmallVec::new())
}

fn launch_zero(_: &Op, l: &Launch<'_>) -> Launched {
    adamw::zero(l.ins)?;
    Ok(SmallVec::new())
}
