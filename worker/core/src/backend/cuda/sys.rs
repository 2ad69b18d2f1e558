//! The shim's CUDA functions as they are in C++: `shim/cuda.cpp`.
//!
//! **Invariant:** no logic; only [`super::result`] calls these.

use std::ffi::c_void;

unsafe extern "C" {
    pub(super) fn enn_cuda_current_stream(device: i32, out: *mut *mut c_void) -> i32;
}
