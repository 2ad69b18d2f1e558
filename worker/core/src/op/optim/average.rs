//! Moving averages of weights.

use super::fits::{arrays_fit, dense};
use super::not_exported;
use crate::backend::cuda::adamw as cuda;
use crate::backend::torch::safe::{average, average_share};
use crate::op::prelude::*;
use tch::TchError;

attributes! {
    /// Operands: updates so far (f64, 0 axes, written); 1, or 0 where nothing is to change (f64, 0 axes); then average (written) and weights
    /// of each array.
    Average { decay: F64Bits } => AVERAGE;
}

const AVERAGE: OpRow<Average> = OpRow::backward("average", shape, launch)
    .writes(|_, i| i.is_multiple_of(2))
    .kernels(&[
        Kernel::new("cuda.average", fits_cuda, launch_cuda),
        // One pass over the arrays.
        Kernel::new("cpu.average", |_, l| dense(&l.ins[2..]), launch_cpu),
    ])
    .flops(|_, ins, _| 3 * ins[2..].iter().step_by(2).map(|meta| count(meta)).sum::<u64>())
    .export(not_exported());

fn shape(_: &Average, ins: &[&Meta]) -> Inferred {
    for pair in ins[2..].chunks(2) {
        if pair.len() != 2 || pair[0].shape != pair[1].shape {
            return Err(wrong(2, pair[0], "averages and weights of one shape, in pairs"));
        }
    }
    Ok(Metas::new())
}

/// Computes avg ← avg + w_t (p − avg) with w_t = (1 − d)/(1 − dᵗ), its limit 1/t for d = 1, or 0.
fn launch(op: &Average, l: &Launch<'_>) -> Launched {
    let share = share(l.at(0), l.at(1), op.decay.get())?;
    for pair in l.ins[2..].chunks(2) {
        let _ = pair[0].shallow_clone().f_lerp_tensor_(pair[1], &share.f_to_kind(pair[0].kind())?)?;
    }
    Ok(SmallVec::new())
}

/// Counts an update, and returns w_t, by which an average moves.
pub(super) fn share(updates: &Raw, taken: &Raw, decay: f64) -> Result<Raw, TchError> {
    let mut updates = updates.shallow_clone();
    let _ = updates.f_add_(taken)?;
    let share = if decay < 1.0 {
        let falling = updates.f_full_like(decay)?.f_pow(&updates)?.f_neg()?.f_add_scalar(1.0)?;
        falling.f_reciprocal()?.f_mul_scalar(1.0 - decay)?
    } else {
        updates.f_reciprocal()?
    };
    // Selected: before the first update it is infinite.
    share.f_where_self(&taken.f_gt(0.5)?, &share.f_zeros_like()?)
}

fn launch_cpu(op: &Average, l: &Launch<'_>) -> Launched {
    average(&l.ins[2..], average_share(l.at(0), l.at(1), op.decay.get())?)?;
    Ok(SmallVec::new())
}

fn fits_cuda(_: &Average, l: &Launch<'_>) -> Fit {
    if l.ins[2..].iter().any(|x| x.kind() != Kind::Float) {
        return Err("averages or weights other than f32");
    }
    if l.at(0).device() != l.ins[l.ins.len() - 1].device() {
        return Err("the count and the averages on several devices");
    }
    arrays_fit(&l.ins[2..])
}

fn launch_cuda(op: &Average, l: &Launch<'_>) -> Launched {
    let pairs: Vec<[&Raw; 2]> = l.ins[2..].chunks_exact(2).map(|pair| [pair[0], pair[1]]).collect();
    cuda::average(&pairs, &cuda::average_share(l.at(0), l.at(1), op.decay.get())?)?;
    Ok(SmallVec::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn averages_in_one_pass_on_the_cpu_are_the_plain_reference() {
        for (decay, updates, taken) in [(0.98_f64, 0.0, 1.0), (0.98, 7.0, 1.0), (1.0, 3.0, 1.0), (0.98, 7.0, 0.0)] {
            let op = Average { decay: decay.into() };
            let counts = [updates, taken].map(|count: f64| Raw::from(count));
            let arrays = [70_001, 19].map(|n| [0; 2].map(|_| Raw::rand([n], (Kind::Float, Device::Cpu))));
            let found: Vec<Raw> = counts.into_iter().chain(arrays.into_iter().flatten()).collect();
            let expected: Vec<Raw> = found.iter().map(Raw::copy).collect();
            let run = |ins: &[Raw], launch: fn(&Average, &Launch<'_>) -> Launched| {
                let ins: Vec<&Raw> = ins.iter().collect();
                (Average::ROW.kernels[1].fits)(&op, &Launch { ins: &ins }).unwrap();
                tch::no_grad(|| launch(&op, &Launch { ins: &ins })).unwrap();
            };
            run(&found, launch_cpu);
            run(&expected, launch);
            assert_eq!(found[0], expected[0], "updates");
            for (found, expected) in found.iter().zip(&expected) {
                assert!(found.allclose(expected, 1e-6, 1e-7, false), "decay {decay}, {updates} updates before");
            }
        }
    }
}
