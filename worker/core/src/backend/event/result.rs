//! Events with an owner.

use crate::backend::torch::{ShimError, check, handle, number};
use std::ffi::c_void;

// `shim/cuda_events.cpp`.
unsafe extern "C" {
    fn enn_event_new(out: *mut *mut c_void) -> i32;
    fn enn_event_free(event: *mut c_void);
    fn enn_event_record(event: *mut c_void) -> i32;
    fn enn_event_elapsed(from: *mut c_void, to: *mut c_void, out: *mut f32) -> i32;
}

/// An event on the stream that was current when it was recorded.
#[derive(Debug)]
pub struct Event(*mut c_void);

impl Event {
    /// Records an event after all work launched so far on the current stream.
    pub fn record() -> Result<Self, ShimError> {
        // SAFETY: no pointers but that of the result.
        let event = Self(handle(|event| unsafe { enn_event_new(event) })?);
        // SAFETY: the event was just made, and lives as long as `event`.
        check(unsafe { enn_event_record(event.0) })?;
        Ok(event)
    }

    /// Returns the nanoseconds from `self` to `later`. Waits for both.
    pub fn nanoseconds_to(&self, later: &Self) -> Result<u64, ShimError> {
        // SAFETY: both events live during the call.
        let milliseconds: f32 = number(|out| unsafe { enn_event_elapsed(self.0, later.0, out) })?;
        Ok((f64::from(milliseconds.max(0.0)) * 1e6) as u64)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the only owner frees once.
        unsafe { enn_event_free(self.0) }
    }
}
