//! The shim's functions as they are in C++: `shim/aten.cpp`, `shim/shared.cpp`, `shim/precision.cpp` and `shim/cpu_*.cpp`.
//!
//! **Invariant:** no logic; only [`super::result`] calls these.

use std::ffi::{c_char, c_void};
use torch_sys::C_tensor;

/// One boxed operand; `tag` says which member counts.
#[repr(C)]
pub(super) struct RawArg {
    pub(super) tag: i32,
    pub(super) integer: i64,
    pub(super) real: f64,
    pub(super) data: *const c_void,
    pub(super) count: usize,
}

/// One argument of a schema; the name lives as long as the operator.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RawArgument {
    pub(super) writes: i32,
    pub(super) takes: u32,
    pub(super) name: *const c_char,
}

unsafe extern "C" {
    pub(super) fn enn_aten_error() -> *const c_char;
    pub(super) fn enn_aten_find(name: *const c_char, overload: *const c_char, out: *mut *mut c_void) -> i32;
    pub(super) fn enn_aten_call(
        handle: *mut c_void,
        args: *const RawArg,
        count: usize,
        outs: *mut *mut C_tensor,
        room: usize,
        made: *mut usize,
    ) -> i32;
    pub(super) fn enn_aten_gradients(
        handle: *mut c_void,
        args: *const RawArg,
        count: usize,
        given: *const *const C_tensor,
        results: usize,
        wanted: *const bool,
        operands: usize,
        outs: *mut *mut C_tensor,
    ) -> i32;
    pub(super) fn enn_aten_draws(handle: *mut c_void, out: *mut i32) -> i32;
    pub(super) fn enn_aten_arguments(handle: *mut c_void, out: *mut RawArgument, room: usize, count: *mut usize)
    -> i32;
    pub(super) fn enn_aten_operators(
        take: unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char),
        to: *mut c_void,
    ) -> i32;
    pub(super) fn enn_aten_hollow(
        sizes: *const i64,
        axes: usize,
        like: *const C_tensor,
        out: *mut *mut C_tensor,
    ) -> i32;
    pub(super) fn enn_aten_layouts(
        tensors: *const *const C_tensor,
        count: usize,
        alignment_max: u64,
        hash: *mut u64,
    ) -> i32;
    pub(super) fn enn_aten_renew_storage(tensor: *const C_tensor, bytes: i64) -> i32;
    pub(super) fn enn_tensor_over(
        data: *mut c_void,
        like: *const C_tensor,
        release: unsafe extern "C" fn(*mut c_void),
        owner: *mut c_void,
        out: *mut *mut C_tensor,
    ) -> i32;
    pub(super) fn enn_aten_version(tensor: *const C_tensor, out: *mut i64) -> i32;
    pub(super) fn enn_allow_tf32(on: i32) -> i32;
    pub(super) fn enn_deterministic(on: i32) -> i32;
    pub(super) fn enn_retention(
        v: *const C_tensor,
        lambda: *const C_tensor,
        state: *const C_tensor,
        both: i32,
        y: *mut *mut C_tensor,
    ) -> i32;
    pub(super) fn enn_retention_backward(ins: *const *const C_tensor, both: i32, outs: *mut *mut C_tensor) -> i32;
    pub(super) fn enn_adamw(
        arrays: *const *const C_tensor,
        count: i64,
        numbers: *const C_tensor,
        decays: i32,
        eps: f32,
        share: f32,
    ) -> i32;
    pub(super) fn enn_average_share(
        updates: *const C_tensor,
        taken: *const C_tensor,
        decay: f64,
        share: *mut f32,
    ) -> i32;
    pub(super) fn enn_average(arrays: *const *const C_tensor, count: i64, share: f32) -> i32;
    pub(super) fn enn_zero(arrays: *const *const C_tensor, count: i64) -> i32;
    pub(super) fn enn_threads(count: i32) -> i32;
    pub(super) fn enn_global_norm(arrays: *const *const C_tensor, count: i64, norm: *mut f64) -> i32;
    pub(super) fn enn_has_wide() -> i32;
    pub(super) fn enn_linear(
        x: *const C_tensor,
        w: *const C_tensor,
        bias: *const C_tensor,
        far: i32,
        y: *mut *mut C_tensor,
    ) -> i32;
    pub(super) fn enn_linear_backward(
        ins: *const *const C_tensor,
        dx: *mut *mut C_tensor,
        dw: *const C_tensor,
        db: *const C_tensor,
    ) -> i32;
    pub(super) fn enn_attention(
        ins: *const *const C_tensor,
        bias: *const C_tensor,
        causal: i32,
        outs: *mut *mut C_tensor,
    ) -> i32;
    pub(super) fn enn_attention_backward(
        ins: *const *const C_tensor,
        bias: *const C_tensor,
        causal: i32,
        outs: *mut *mut C_tensor,
    ) -> i32;
    pub(super) fn enn_norm(ins: *const *const C_tensor, centred: i32, eps: f32, outs: *mut *mut C_tensor) -> i32;
    pub(super) fn enn_norm_backward(ins: *const *const C_tensor, outs: *mut *mut C_tensor) -> i32;
    pub(super) fn enn_gate(ins: *const *const C_tensor, y: *mut *mut C_tensor) -> i32;
    pub(super) fn enn_gate_backward(ins: *const *const C_tensor, outs: *mut *mut C_tensor) -> i32;
    pub(super) fn enn_dropout(
        x: *const C_tensor,
        rows: i32,
        key: *const u64,
        first: u64,
        threshold: u32,
        scale: f64,
        y: *mut *mut C_tensor,
    ) -> i32;
}
