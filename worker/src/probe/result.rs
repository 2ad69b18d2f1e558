//! Wrappers of the C interface in `shim/probe.cpp` that return owned strings.

use std::ffi::{CStr, c_char};

unsafe extern "C" {
    fn enn_probe_built() -> *const c_char;
    fn enn_probe_config() -> *const c_char;
    fn enn_probe_nccl() -> *const c_char;
    fn enn_threads_at_work() -> i32;
}

fn text(pointer: *const c_char) -> String {
    // SAFETY: the shim returns NUL-terminated strings that live as long as the process.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

pub(super) fn built() -> String {
    // SAFETY: takes nothing, and throws nothing across.
    text(unsafe { enn_probe_built() })
}

pub(super) fn config() -> String {
    // SAFETY: as in `built`.
    text(unsafe { enn_probe_config() })
}

pub(super) fn nccl() -> String {
    // SAFETY: as in `built`.
    text(unsafe { enn_probe_nccl() })
}

/// Number of threads that the loops of our own kernels use.
pub(super) fn threads() -> i32 {
    // SAFETY: as in `built`.
    unsafe { enn_threads_at_work() }
}
