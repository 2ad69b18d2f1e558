//! Pinned memory with an owner.

use crate::backend::torch::{ShimError, check};
use enn_common::fs::mmap::SharedPart;
use std::ffi::c_void;
use tch::Device;

// `shim/cuda_host.cpp`.
unsafe extern "C" {
    fn enn_host_lock(device: i32, at: *mut c_void, bytes: usize) -> i32;
    fn enn_host_unlock(device: i32, at: *mut c_void) -> i32;
}

/// A part of a memory file whose pages are locked.
#[derive(Debug)]
pub struct PinnedBuffer {
    part: SharedPart,
    /// The device that the pages are locked for; `None` if they are not locked.
    device: Option<i32>,
}

impl PinnedBuffer {
    /// Locks the pages for `device`; nothing is locked for the CPU. A refusal only makes copies slower: the memory is usable in any
    /// case.
    pub fn of(mut part: SharedPart, device: Device) -> (Self, Result<(), ShimError>) {
        let Device::Cuda(index) = device else { return (Self { part, device: None }, Ok(())) };
        let bytes = part.bytes_mut();
        let index = index as i32;
        // SAFETY: the pages are of a mapping that `Self` owns, which unlocks them before it goes.
        let done = check(unsafe { enn_host_lock(index, bytes.as_mut_ptr().cast(), bytes.len()) });
        (Self { part, device: done.is_ok().then_some(index) }, done)
    }

    pub fn is_pinned(&self) -> bool {
        self.device.is_some()
    }

    /// Returns all bytes, for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.part.bytes_mut()
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        if let Some(device) = self.device {
            // SAFETY: locked by `of`, and unlocked here once; the mapping goes after this.
            // At the end of the process CUDA may be gone, and its locks with it.
            let _gone = unsafe { enn_host_unlock(device, self.part.bytes_mut().as_mut_ptr().cast()) };
        }
    }
}
