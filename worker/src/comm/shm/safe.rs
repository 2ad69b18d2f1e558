//! Tensors as slices of numbers, for the time of one collective.

use super::{region::Region, sys};
use enn_common::fs::mmap::Plain;
use std::{
    ffi::{CStr, c_void},
    io, ptr, slice,
    sync::Arc,
};
use tch::Tensor;

/// The values of a dense, contiguous tensor on the host, of which `T` is the kind (or `u8`: its bytes).
///
/// Exclusive as far as Rust sees it. As with c10d, whoever began the collective leaves the values alone until it ended.
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

/// Gives back what [`tensor_in`] handed over.
unsafe extern "C" fn release(owner: *mut c_void) {
    // SAFETY: `tensor_in` made this pointer of an `Arc<Region>`, and the shim gives it back once.
    drop(unsafe { Arc::from_raw(owner.cast_const().cast::<Region>()) });
}

/// This rank's tensor in `region`, shaped like `tensor`, zeroed as fresh memory is. The region stays as long as it.
pub(super) fn tensor_in(region: &Arc<Region>, rank: u32, tensor: &Tensor) -> io::Result<Tensor> {
    let data = region.segment.address(region.at(rank));
    let owner = Arc::into_raw(Arc::clone(region)).cast_mut();
    let mut out = ptr::null_mut();
    // SAFETY: a region holds the bytes of such a tensor for every rank, at pages' starts, and is mapped until `release`;
    // `tensor` lives during the call, and `out` is writable.
    let status = unsafe { sys::enn_tensor_over(data.cast(), tensor.as_ptr(), release, owner.cast(), &raw mut out) };
    if status != 0 {
        // SAFETY: the shim keeps a NUL-terminated sentence per thread, valid until the next call on this thread.
        let text = unsafe { CStr::from_ptr(sys::enn_aten_error()) };
        return Err(io::Error::other(text.to_string_lossy().into_owned()));
    }
    // SAFETY: the shim made this tensor for us, and nobody else frees it.
    Ok(unsafe { Tensor::from_ptr(out) })
}
