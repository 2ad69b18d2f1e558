//! The functions of `shim/cuda_copy.cpp`.
//!
//! **Invariant:** no logic; only [`super::result`] calls these.

use std::ffi::c_void;

unsafe extern "C" {
    pub(super) fn enn_copier_new(device: i32, out: *mut *mut c_void) -> i32;
    pub(super) fn enn_copier_free(copier: *mut c_void);
    pub(super) fn enn_copier_begin(copier: *mut c_void) -> i32;
    pub(super) fn enn_copier_copy(copier: *mut c_void, from: *const c_void, to: *mut c_void, bytes: usize) -> i32;
    pub(super) fn enn_copier_end(copier: *mut c_void) -> i32;
    pub(super) fn enn_copier_hold(copier: *mut c_void) -> i32;
    pub(super) fn enn_copier_done(copier: *mut c_void, out: *mut i32) -> i32;
    pub(super) fn enn_copier_wait(copier: *mut c_void) -> i32;
}
