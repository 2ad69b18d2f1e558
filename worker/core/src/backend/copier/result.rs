//! A device's copy stream with owners: source and destination of a copy stay alive until the device has completed it.

use crate::backend::{
    pinned::PinnedBuffer,
    torch::{ShimError, check, handle, number},
};
use std::{ffi::c_void, ops::Range, rc::Rc};
use tch::Tensor;

// `shim/cuda_copy.cpp`.
unsafe extern "C" {
    fn enn_copier_new(device: i32, out: *mut *mut c_void) -> i32;
    fn enn_copier_free(copier: *mut c_void);
    fn enn_copier_begin(copier: *mut c_void) -> i32;
    fn enn_copier_copy(copier: *mut c_void, from: *const c_void, to: *mut c_void, bytes: usize) -> i32;
    fn enn_copier_end(copier: *mut c_void) -> i32;
    fn enn_copier_hold(copier: *mut c_void) -> i32;
    fn enn_copier_done(copier: *mut c_void, out: *mut i32) -> i32;
    fn enn_copier_wait(copier: *mut c_void) -> i32;
}

/// A copy stream, separate from the one that computes.
#[derive(Debug, Clone)]
pub struct Copier(Rc<CopierStream>);

#[derive(Debug)]
struct CopierStream(*mut c_void);

/// Copies in flight.
#[derive(Debug)]
pub struct PendingCopy {
    copier: Copier,
    /// Destination of the copies; taken at the end.
    into: Option<PinnedBuffer>,
    _from: Vec<Tensor>,
}

impl Copier {
    /// Returns a copy stream of the CUDA device with this index.
    pub fn new(device: usize) -> Result<Self, ShimError> {
        // SAFETY: no pointers but that of the result.
        let copier = handle(|copier| unsafe { enn_copier_new(device as i32, copier) })?;
        Ok(Self(Rc::new(CopierStream(copier))))
    }

    /// Begins to copy each tensor, elements in order, to the given byte range of `into`. The copies see the tensors as they are after all work
    /// launched so far on the current stream. A caller that changes the tensors later on that stream must call [`Copier::hold`] first.
    ///
    /// # Errors
    /// Returns the memory together with the device's error; no copy writes to it any more.
    pub fn begin(
        &self,
        jobs: Vec<(Tensor, Range<usize>)>,
        mut into: PinnedBuffer,
    ) -> Result<PendingCopy, (PinnedBuffer, ShimError)> {
        let asked = self.ask(&jobs, into.bytes_mut());
        let from = jobs.into_iter().map(|(tensor, _)| tensor).collect();
        let copying = PendingCopy { copier: self.clone(), into: Some(into), _from: from };
        match asked {
            Ok(()) => Ok(copying),
            // Copies begun before the failure may be in flight.
            Err(error) => Err((copying.finish().0, error)),
        }
    }

    fn ask(&self, jobs: &[(Tensor, Range<usize>)], into: &mut [u8]) -> Result<(), ShimError> {
        let stream = self.0.0;
        // SAFETY: the stream lives as long as `self`.
        check(unsafe { enn_copier_begin(stream) })?;
        for (tensor, range) in jobs {
            let bytes = tensor.numel() * tensor.kind().elt_size_in_bytes();
            let to = &mut into[range.clone()];
            assert!(to.len() == bytes && tensor.is_contiguous(), "elements in order, and room for just these");
            // SAFETY: both places have so many bytes, by the line above; `PendingCopy` holds both until the device has done it.
            check(unsafe { enn_copier_copy(stream, tensor.data_ptr(), to.as_mut_ptr().cast(), bytes) })?;
        }
        // SAFETY: as above.
        check(unsafe { enn_copier_end(stream) })
    }

    /// Makes later work on the current stream wait for the copies begun so far, without blocking the host.
    pub fn hold(&self) -> Result<(), ShimError> {
        // SAFETY: the stream lives as long as `self`.
        check(unsafe { enn_copier_hold(self.0.0) })
    }
}

impl PendingCopy {
    /// The copy stream, to call [`Copier::hold`] on.
    pub fn copier(&self) -> &Copier {
        &self.copier
    }

    /// Whether [`PendingCopy::finish`] will not wait.
    pub fn is_done(&self) -> bool {
        // SAFETY: the stream lives as long as `self`.
        let done = number(|done| unsafe { enn_copier_done(self.copier.0.0, done) });
        // An error is reported by `finish`.
        done.map_or(true, |done| done != 0)
    }

    /// Waits for the device. Returns the memory, and whether all copies succeeded.
    pub fn finish(mut self) -> (PinnedBuffer, Result<(), ShimError>) {
        let done = self.wait();
        let into = self.into.take();
        (into.unwrap_or_else(|| unreachable!("it is taken here only, once")), done)
    }

    fn wait(&self) -> Result<(), ShimError> {
        // SAFETY: the stream lives as long as `self`.
        check(unsafe { enn_copier_wait(self.copier.0.0) })
    }
}

impl Drop for PendingCopy {
    fn drop(&mut self) {
        if self.into.is_some() {
            let _lost_with_the_device = self.wait();
        }
    }
}

impl Drop for CopierStream {
    fn drop(&mut self) {
        // SAFETY: the only owner frees once; whoever copied has waited.
        unsafe { enn_copier_free(self.0) }
    }
}
