//! Tensors on the host as byte slices: the unsafe part of reading and filling them.

use nix::sys::mman::{MmapAdvise, madvise};
use std::{ffi::c_void, ptr::NonNull};
use tch::{Device, Tensor};

/// A large page on most machines.
const LARGE_PAGE_BYTES: usize = 2 << 20;

/// Returns the bytes of a tensor without a copy; `None` if it is not on the host or not contiguous.
pub fn host_bytes(tensor: &Tensor) -> Option<&[u8]> {
    let bytes = tensor.numel() * tensor.kind().elt_size_in_bytes();
    if tensor.device() != Device::Cpu || !tensor.is_contiguous() {
        return None;
    }
    if bytes == 0 {
        return Some(&[]);
    }
    // SAFETY: a contiguous tensor on the host has its elements behind each other from data_ptr on, and they live as long as it.
    Some(unsafe { std::slice::from_raw_parts(tensor.data_ptr().cast::<u8>(), bytes) })
}

/// Returns the bytes of a tensor as [`host_bytes`] does, for writing. Memory that was not touched yet is backed by large pages where the
/// system has them.
pub fn host_bytes_mut(tensor: &mut Tensor) -> Option<&mut [u8]> {
    let bytes = host_bytes(tensor)?.len();
    if bytes == 0 {
        return Some(&mut []);
    }
    let start = tensor.data_ptr().cast::<u8>();
    expect_large(start, bytes);
    // SAFETY: as in `host_bytes`; the borrow is exclusive, and the tensor's storage is shared with no other that is in use.
    Some(unsafe { std::slice::from_raw_parts_mut(start, bytes) })
}

/// Advises the kernel to use large pages. A system without them ignores the advice.
fn expect_large(start: *mut u8, bytes: usize) {
    let skip = start.addr().wrapping_neg() % LARGE_PAGE_BYTES;
    let length = bytes.saturating_sub(skip) / LARGE_PAGE_BYTES * LARGE_PAGE_BYTES;
    if length > 0
        && let Some(at) = NonNull::new(start.wrapping_add(skip).cast::<c_void>())
    {
        // SAFETY: the range lies in the tensor's memory; the advice changes no byte of it.
        let _without = unsafe { madvise(at, length, MmapAdvise::MADV_HUGEPAGE) };
    }
}
