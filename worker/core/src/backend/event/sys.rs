//! The functions of `shim/cuda_events.cpp`.
//!
//! **Invariant:** no logic; only [`super::result`] calls these.

use std::ffi::c_void;

unsafe extern "C" {
    pub(super) fn enn_event_new(out: *mut *mut c_void) -> i32;
    pub(super) fn enn_event_free(event: *mut c_void);
    pub(super) fn enn_event_record(event: *mut c_void) -> i32;
    pub(super) fn enn_event_elapsed(from: *mut c_void, to: *mut c_void, out: *mut f32) -> i32;
}
