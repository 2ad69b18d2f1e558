//! Whether our own CUDA kernels take a tensor.
//!
//! **Invariant:** `fits` of a kernel looks at kinds, shapes and devices only. Strides and alignment need no condition: our kernels copy
//! what is not dense and load element by element what is not aligned; those that write in place refuse what is not dense.

use super::row::Fit;
use crate::backend::cuda::{Element, is_present};
use tch::{Device, Tensor};

/// Whether our kernels run where `x` is.
pub(super) fn present(x: &Tensor) -> Fit {
    if !matches!(x.device(), Device::Cuda(_)) {
        return Err("not on a CUDA device");
    }
    if is_present() { Ok(()) } else { Err("the CUDA driver or NVRTC was not found") }
}

/// Whether our kernels run where `x` is, and take its kind.
pub(super) fn on_device(x: &Tensor) -> Fit {
    if Element::of(x.kind()).is_none() {
        return Err("neither f32, bf16 nor f16");
    }
    present(x)
}
