//! Locked memory with an owner.

use super::sys;
use crate::backend::torch::{ShimError, check};
use enn_common::fs::mmap::SharedPart;
use tch::Device;

/// Part of a memory file whose pages stay where they are.
#[derive(Debug)]
pub struct Locked {
    part: SharedPart,
    /// The device that asked for it, where it was given.
    device: Option<i32>,
}

impl Locked {
    /// Locks the pages for `device`; for the host itself there is nothing to be done. What is refused costs time only: the memory is
    /// as good as before.
    pub fn of(mut part: SharedPart, device: Device) -> (Self, Result<(), ShimError>) {
        let Device::Cuda(index) = device else { return (Self { part, device: None }, Ok(())) };
        let bytes = part.bytes_mut();
        let index = index as i32;
        // SAFETY: the pages are of a mapping that `Self` owns, which unlocks them before it goes.
        let done = check(unsafe { sys::enn_host_lock(index, bytes.as_mut_ptr().cast(), bytes.len()) });
        (Self { part, device: done.is_ok().then_some(index) }, done)
    }

    /// Whether a device copies to it by itself.
    pub fn is_locked(&self) -> bool {
        self.device.is_some()
    }

    /// All bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.part.bytes_mut()
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        if let Some(device) = self.device {
            // SAFETY: locked by `of`, and unlocked here once; the mapping goes after this.
            // At the end of the process CUDA may be gone, and its locks with it.
            let _gone = unsafe { sys::enn_host_unlock(device, self.part.bytes_mut().as_mut_ptr().cast()) };
        }
    }
}
