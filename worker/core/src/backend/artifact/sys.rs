//! The functions of `shim/artifact.cpp`.
//!
//! **Invariant:** no logic; only [`super::result`] calls these.

use std::ffi::{c_char, c_void};
use torch_sys::C_tensor;

unsafe extern "C" {
    pub(super) fn enn_artifact_archive(path: *const c_char, out: *mut *mut c_void) -> i32;
    pub(super) fn enn_artifact_package(path: *const c_char, device: i32, out: *mut *mut c_void) -> i32;
    pub(super) fn enn_artifact_free(artifact: *mut c_void);
    pub(super) fn enn_artifact_about(path: *const c_char, out: *mut *const c_char) -> i32;
    pub(super) fn enn_artifact_run(
        artifact: *mut c_void,
        inputs: *const *const C_tensor,
        count: usize,
        outs: *mut *mut C_tensor,
        room: usize,
        made: *mut usize,
    ) -> i32;
    pub(super) fn enn_artifact_stand_in(path: *const c_char) -> i32;
}
