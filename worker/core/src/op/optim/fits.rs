//! Which arrays the optimizer's kernels take.
//!
//! **Invariant:** kinds, shapes and devices decide. These kernels write in place, so that what is not dense is refused, not copied.

use crate::op::prelude::*;

/// Whether the arrays are dense f32 on the CPU.
pub(super) fn dense(arrays: &[&Raw]) -> Fit {
    let fits = |x: &Raw| x.device() == Device::Cpu && x.kind() == Kind::Float && x.is_contiguous();
    if arrays.iter().all(|x| fits(x)) { Ok(()) } else { Err("not dense f32 on the CPU") }
}

/// Whether the arrays are dense, of one kind, and on one device that has our kernels.
pub(super) fn arrays_fit(arrays: &[&Raw]) -> Fit {
    let Some(first) = arrays.first() else { return Err("no arrays") };
    if arrays.iter().any(|x| x.kind() != first.kind() || x.device() != first.device() || !x.is_contiguous()) {
        return Err("arrays of several kinds or devices, or not dense");
    }
    on_device(first)
}
