//! Events with an owner.

use super::sys;
use crate::backend::torch::{ShimError, check};
use std::{ffi::c_void, ptr};

/// An event on the stream that was current when it was recorded.
#[derive(Debug)]
pub struct Event(*mut c_void);

impl Event {
    /// Records an event after all work launched so far on the current stream.
    ///
    /// # Errors
    /// Without CUDA, or on errors of the device.
    pub fn record() -> Result<Self, ShimError> {
        let mut event = ptr::null_mut();
        // SAFETY: `event` is writable.
        check(unsafe { sys::enn_event_new(&raw mut event) })?;
        let event = Self(event);
        // SAFETY: the event was just made, and lives as long as `event`.
        check(unsafe { sys::enn_event_record(event.0) })?;
        Ok(event)
    }

    /// Returns the nanoseconds from `self` to `later`. Waits for both.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn nanoseconds_to(&self, later: &Self) -> Result<u64, ShimError> {
        let mut milliseconds = 0.0;
        // SAFETY: both events live during the call, and the number is writable.
        check(unsafe { sys::enn_event_elapsed(self.0, later.0, &raw mut milliseconds) })?;
        Ok((f64::from(milliseconds.max(0.0)) * 1e6) as u64)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the only owner frees once.
        unsafe { sys::enn_event_free(self.0) }
    }
}
