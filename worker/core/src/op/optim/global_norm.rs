//! The norm of many arrays.

use super::fits::{arrays_fit, dense};
use super::not_exported;
use crate::backend::cuda::adamw as cuda;
use crate::backend::torch::safe::global_norm;
use crate::op::prelude::*;

attributes! {
    /// Operands: any number of arrays; the first may be the norm of others, f64 of 0 axes. Result: √Σx², f64, 0 axes.
    GlobalNorm => GLOBAL_NORM;
}

/// Numbers whose norm the plain reference takes at once.
const NORM_PIECE: i64 = 1 << 24;

const GLOBAL_NORM: OpRow<GlobalNorm> = OpRow::backward("global_norm", shape, launch)
    .kernels(&[
        Kernel::new(
            "cuda.global_norm",
            |_, l| arrays_fit(arrays(l)),
            |_, l| Ok(smallvec![cuda::norm(measured(l), arrays(l))?]),
        ),
        // All arrays in one pass.
        Kernel::new("cpu.global_norm", |_, l| dense(l.ins), |_, l| Ok(smallvec![Raw::from(global_norm(l.ins)?)])),
    ])
    .flops(|_, ins, _| 2 * ins.iter().map(|meta| count(meta)).sum::<u64>())
    .export(not_exported());

fn shape(_: &GlobalNorm, ins: &[&Meta]) -> Inferred {
    let Some(first) = ins.first() else {
        return Err(OpErrorKind::Attribute { name: "number of arrays", found: 0.0, expected: "at least one" });
    };
    ins.iter().enumerate().try_for_each(|(i, meta)| float(i, meta))?;
    one(Meta { shape: SmallVec::new(), kind: Kind::Double, device: first.device })
}

fn launch(_: &GlobalNorm, l: &Launch<'_>) -> Launched {
    // In f64: libtorch's sum of 12 million squares is a thousandth off in f32. A piece at a time, for it is copied.
    let norm = |flat: &&Raw| {
        let pieces = flat.f_flatten(0, -1)?.f_split(NORM_PIECE, 0)?;
        let norms =
            pieces.iter().map(|piece| piece.f_to_kind(Kind::Double)?.f_norm()).collect::<Result<Vec<_>, _>>()?;
        Raw::f_stack(&norms, 0)?.f_norm()
    };
    let norms = l.ins.iter().map(norm).collect::<Result<Vec<_>, _>>()?;
    Ok(smallvec![Raw::f_stack(&norms, 0)?.f_norm()?])
}

/// The norm of arrays that were measured before, if there is one.
fn measured<'t>(l: &Launch<'t>) -> Option<&'t Raw> {
    l.ins.first().copied().filter(|before| before.kind() == Kind::Double && before.dim() == 0 && l.ins.len() > 1)
}

/// The arrays that are to be measured.
fn arrays<'l, 't>(l: &'l Launch<'t>) -> &'l [&'t Raw] {
    &l.ins[usize::from(measured(l).is_some())..]
}
