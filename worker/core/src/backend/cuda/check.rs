//! Checks of a kernel's operands before their addresses are passed to it.

use super::error::CudaError;
use super::source::Element;
use tch::{Device, Kind, Tensor};

/// Most blocks of one launch.
const BLOCKS_MAX: i64 = 1 << 30;
/// Bytes of the widest load.
pub(super) const PACK_BYTES: i64 = 16;

#[derive(Debug, Clone, Copy)]
pub(super) struct Check {
    pub(super) kernel: &'static str,
}

fn describe(tensor: &Tensor) -> String {
    let kind = tensor.kind();
    let device = tensor.device();
    format!("{kind:?} {:?} with strides {:?} on {device:?}", tensor.size(), tensor.stride())
}

impl Check {
    /// Returns the error for an operand that the kernel does not take.
    pub(super) fn refuse(self, operand: &'static str, tensor: &Tensor, expected: &'static str) -> CudaError {
        CudaError::Operand { kernel: self.kernel, operand, found: describe(tensor), expected }
    }

    pub(super) fn that(
        self,
        holds: bool,
        operand: &'static str,
        tensor: &Tensor,
        expected: &'static str,
    ) -> Result<(), CudaError> {
        if holds { Ok(()) } else { Err(self.refuse(operand, tensor, expected)) }
    }

    /// Returns the index of the tensor's CUDA device.
    pub(super) fn device(self, operand: &'static str, tensor: &Tensor) -> Result<usize, CudaError> {
        match tensor.device() {
            Device::Cuda(index) => Ok(index),
            _ => Err(self.refuse(operand, tensor, "on a CUDA device")),
        }
    }

    pub(super) fn element(self, operand: &'static str, tensor: &Tensor) -> Result<Element, CudaError> {
        Element::of(tensor.kind()).ok_or_else(|| self.refuse(operand, tensor, "f32, bf16 or f16"))
    }

    /// Checks that a tensor is dense and has the kind, device and shape of `like`.
    pub(super) fn same(self, operand: &'static str, tensor: &Tensor, like: &Tensor) -> Result<(), CudaError> {
        self.that(tensor.kind() == like.kind(), operand, tensor, "of the kind of the first operand")?;
        self.that(tensor.size() == like.size(), operand, tensor, "of the shape of the first operand")?;
        self.dense(operand, tensor, like)
    }

    /// Checks that a tensor is dense and on the device of `like`.
    pub(super) fn dense(self, operand: &'static str, tensor: &Tensor, like: &Tensor) -> Result<(), CudaError> {
        self.that(tensor.device() == like.device(), operand, tensor, "on the device of the first operand")?;
        self.that(tensor.is_contiguous(), operand, tensor, "contiguous")
    }

    /// Checks that a tensor is dense, of `kind`, with `count` elements, and on the device of `like`.
    pub(super) fn numbers(
        self,
        operand: &'static str,
        tensor: &Tensor,
        kind: Kind,
        count: i64,
        like: &Tensor,
    ) -> Result<(), CudaError> {
        self.that(tensor.kind() == kind, operand, tensor, "of another kind")?;
        self.that(tensor.numel() as i64 == count, operand, tensor, "of another number of elements")?;
        self.dense(operand, tensor, like)
    }
}

/// Whether every tensor's address is aligned for loads of 16 bytes.
pub(super) fn aligned(tensors: &[&Tensor]) -> bool {
    tensors.iter().all(|tensor| (tensor.data_ptr() as usize).is_multiple_of(PACK_BYTES as usize))
}

/// Returns the quotient, rounded up; neither number may be negative.
pub(super) fn ceil(count: i64, by: i64) -> i64 {
    (count + by - 1) / by
}

/// Returns the number of blocks of `per_block` elements that cover `count`, at most [`BLOCKS_MAX`]; the kernels stride over the rest.
pub(super) fn blocks(count: i64, per_block: i64) -> u32 {
    u32::try_from(ceil(count, per_block).min(BLOCKS_MAX)).unwrap_or(0)
}

/// Returns the elements per load for rows of `width`: 16 bytes' worth, or 1 where the width is no multiple of that.
pub(super) fn pack(element: Element, width: i64) -> u32 {
    let widest = PACK_BYTES / element.bytes();
    if width > 0 && width % widest == 0 { widest as u32 } else { 1 }
}
