//! The functions of `shim/cuda_host.cpp`.
//!
//! **Invariant:** no logic; only [`super::result`] calls these.

use std::ffi::c_void;

unsafe extern "C" {
    pub(super) fn enn_host_lock(device: i32, at: *mut c_void, bytes: usize) -> i32;
    pub(super) fn enn_host_unlock(device: i32, at: *mut c_void) -> i32;
}
