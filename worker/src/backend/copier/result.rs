//! A device's stream of copies, with owners: what is copied, from where and to where, stays until the device has done it.

use super::sys;
use crate::backend::{
    locked::Locked,
    torch::{ShimError, check},
};
use std::{ffi::c_void, ops::Range, ptr, rc::Rc};
use tch::Tensor;

/// A stream beside the one that computes.
#[derive(Debug, Clone)]
pub struct Copier(Rc<Stream>);

#[derive(Debug)]
struct Stream(*mut c_void);

/// Copies under way.
#[derive(Debug)]
pub struct Copying {
    copier: Copier,
    /// Where the bytes go; taken at the end.
    into: Option<Locked>,
    /// What they are copied from.
    _from: Vec<Tensor>,
}

impl Copier {
    /// Of the CUDA device with this number.
    ///
    /// # Errors
    /// Without CUDA, or what the device says.
    pub fn new(device: usize) -> Result<Self, ShimError> {
        let mut copier = ptr::null_mut();
        // SAFETY: `copier` is writable.
        check(unsafe { sys::enn_copier_new(device as i32, &raw mut copier) })?;
        Ok(Self(Rc::new(Stream(copier))))
    }

    /// Begins to copy tensors of the device, elements in order, to the bytes of `into` that are named beside each: as they are once the
    /// current stream has done what it was given so far. Whoever changes them later on that stream calls [`Copier::hold`] first.
    ///
    /// # Errors
    /// The memory comes back with what the device says; nothing copies to it any more.
    pub fn begin(&self, jobs: Vec<(Tensor, Range<usize>)>, mut into: Locked) -> Result<Copying, (Locked, ShimError)> {
        let asked = self.ask(&jobs, into.bytes_mut());
        let from = jobs.into_iter().map(|(tensor, _)| tensor).collect();
        let copying = Copying { copier: self.clone(), into: Some(into), _from: from };
        match asked {
            Ok(()) => Ok(copying),
            // What was asked for before it failed may be under way.
            Err(error) => Err((copying.finish().0, error)),
        }
    }

    fn ask(&self, jobs: &[(Tensor, Range<usize>)], into: &mut [u8]) -> Result<(), ShimError> {
        let stream = self.0.0;
        // SAFETY: the stream lives as long as `self`.
        check(unsafe { sys::enn_copier_begin(stream) })?;
        for (tensor, range) in jobs {
            let bytes = tensor.numel() * tensor.kind().elt_size_in_bytes();
            let to = &mut into[range.clone()];
            assert!(to.len() == bytes && tensor.is_contiguous(), "elements in order, and room for just these");
            // SAFETY: both places have so many bytes, by the line above; `Copying` holds both until the device has done it.
            check(unsafe { sys::enn_copier_copy(stream, tensor.data_ptr(), to.as_mut_ptr().cast(), bytes) })?;
        }
        // SAFETY: as above.
        check(unsafe { sys::enn_copier_end(stream) })
    }

    /// Lets what is launched on the current stream from now on wait for what was asked for; the host goes on.
    ///
    /// # Errors
    /// What the device says.
    pub fn hold(&self) -> Result<(), ShimError> {
        // SAFETY: the stream lives as long as `self`.
        check(unsafe { sys::enn_copier_hold(self.0.0) })
    }
}

impl Copying {
    /// The stream, to hold for.
    pub fn copier(&self) -> &Copier {
        &self.copier
    }

    /// Whether [`Copying::finish`] will not wait.
    pub fn is_done(&self) -> bool {
        let mut done = 0;
        // SAFETY: the stream lives as long as `self`, and the number is writable.
        let asked = check(unsafe { sys::enn_copier_done(self.copier.0.0, &raw mut done) });
        // What went wrong is told at the end.
        asked.is_err() || done != 0
    }

    /// Waits for the device. The memory comes back, and whether all is in it.
    pub fn finish(mut self) -> (Locked, Result<(), ShimError>) {
        let done = self.wait();
        let into = self.into.take();
        (into.unwrap_or_else(|| unreachable!("it is taken here only, once")), done)
    }

    fn wait(&self) -> Result<(), ShimError> {
        // SAFETY: the stream lives as long as `self`.
        check(unsafe { sys::enn_copier_wait(self.copier.0.0) })
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        if self.into.is_some() {
            let _lost_with_the_device = self.wait();
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the only owner frees once; whoever copied has waited.
        unsafe { sys::enn_copier_free(self.0) }
    }
}
