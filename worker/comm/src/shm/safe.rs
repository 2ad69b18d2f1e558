//! Tensors as slices of numbers, for the duration of a collective.

use super::region::SharedRegion;
use enn_common::fs::mmap::Plain;
use enn_core::backend::torch::over;
use std::{io, slice, sync::Arc};
use tch::Tensor;

/// Returns the values of a contiguous tensor on the host; `T` is its kind, or `u8` for its bytes.
///
/// The borrow is exclusive in Rust only. As with c10d, the caller of a collective must not access the values until it ended.
pub(super) fn numbers<T: Plain>(tensor: &mut Tensor) -> &mut [T] {
    let bytes = tensor.numel() * tensor.kind().elt_size_in_bytes();
    if bytes == 0 {
        return &mut [];
    }
    debug_assert!(tensor.is_contiguous() && bytes.is_multiple_of(size_of::<T>()));
    // SAFETY: contiguous storage holds `bytes` bytes from the data pointer on, aligned for its kind, and lives as long as
    // the tensor, which is borrowed exclusively; any bits are a number.
    unsafe { slice::from_raw_parts_mut(tensor.data_ptr().cast(), bytes / size_of::<T>()) }
}

/// Returns this rank's tensor in `region`, shaped like `tensor` and filled with zeros. It keeps the region alive.
pub(super) fn tensor_in(region: &Arc<SharedRegion>, rank: u32, tensor: &Tensor) -> io::Result<Tensor> {
    let data = region.segment.address(region.at(rank));
    // SAFETY: a region holds the bytes of such a tensor for every rank, at pages' starts, mapped as long as it lives.
    unsafe { over(data.cast(), tensor, Arc::clone(region)) }.map_err(|error| io::Error::other(error.message))
}
