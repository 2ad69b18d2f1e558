//! Declarations of `shim/c10d.cpp`, word for word. Nothing here decides anything.

use std::ffi::{c_char, c_void};
use torch_sys::C_tensor;

pub(super) const ENN_OK: i32 = 0;
pub(super) const ENN_TIMED_OUT: i32 = 2;

#[repr(C)]
pub(super) struct enn_store {
    _opaque: [u8; 0],
}

#[repr(C)]
pub(super) struct enn_group {
    _opaque: [u8; 0],
}

#[repr(C)]
pub(super) struct enn_cut {
    _opaque: [u8; 0],
}

#[repr(C)]
pub(super) struct enn_work {
    _opaque: [u8; 0],
}

/// Takes a value's bytes; called at most once, before the function it was given to returns.
pub(super) type Sink = unsafe extern "C" fn(context: *mut c_void, data: *const u8, bytes: usize);

unsafe extern "C" {
    pub(super) fn enn_c10d_error() -> *const c_char;

    pub(super) fn enn_store_connect(
        host: *const c_char,
        port: u16,
        prefix: *const c_char,
        timeout_ms: i64,
        out: *mut *mut enn_store,
    ) -> i32;
    pub(super) fn enn_store_prefixed(store: *mut enn_store, prefix: *const c_char, out: *mut *mut enn_store) -> i32;
    pub(super) fn enn_store_free(store: *mut enn_store);
    pub(super) fn enn_store_set(store: *mut enn_store, key: *const c_char, data: *const u8, bytes: usize) -> i32;
    pub(super) fn enn_store_get(store: *mut enn_store, key: *const c_char, sink: Sink, context: *mut c_void) -> i32;
    pub(super) fn enn_store_compare_set(
        store: *mut enn_store,
        key: *const c_char,
        expected: *const u8,
        expected_bytes: usize,
        wanted: *const u8,
        wanted_bytes: usize,
        sink: Sink,
        context: *mut c_void,
    ) -> i32;
    pub(super) fn enn_store_append(store: *mut enn_store, key: *const c_char, data: *const u8, bytes: usize) -> i32;
    pub(super) fn enn_store_add(store: *mut enn_store, key: *const c_char, amount: i64, sum: *mut i64) -> i32;
    pub(super) fn enn_store_check(store: *mut enn_store, key: *const c_char, present: *mut i32) -> i32;
    pub(super) fn enn_store_wait(store: *mut enn_store, key: *const c_char, timeout_ms: i64) -> i32;
    pub(super) fn enn_store_delete(store: *mut enn_store, key: *const c_char, deleted: *mut i32) -> i32;

    pub(super) fn enn_store_guarded(
        store: *mut enn_store,
        cut: *mut enn_cut,
        timeout_ms: i64,
        out: *mut *mut enn_store,
    ) -> i32;

    pub(super) fn enn_cut_new() -> *mut enn_cut;
    pub(super) fn enn_cut_free(cut: *mut enn_cut);
    pub(super) fn enn_cut_now(cut: *mut enn_cut) -> i32;
    pub(super) fn enn_cut_is(cut: *mut enn_cut) -> i32;

    pub(super) fn enn_gloo_new(
        store: *mut enn_store,
        cut: *mut enn_cut,
        rank: i32,
        size: i32,
        bind: *const c_char,
        threads: i32,
        form_ms: i64,
        timeout_ms: i64,
        out: *mut *mut enn_group,
    ) -> i32;
    #[cfg(feature = "cuda")]
    pub(super) fn enn_nccl_new(
        store: *mut enn_store,
        cut: *mut enn_cut,
        rank: i32,
        size: i32,
        device: i32,
        form_ms: i64,
        timeout_ms: i64,
        out: *mut *mut enn_group,
    ) -> i32;
    pub(super) fn enn_group_all_reduce(
        group: *mut enn_group,
        tensor: *const C_tensor,
        reduce: i32,
        out: *mut *mut enn_work,
    ) -> i32;
    pub(super) fn enn_group_broadcast(
        group: *mut enn_group,
        tensor: *const C_tensor,
        root: i32,
        out: *mut *mut enn_work,
    ) -> i32;
    pub(super) fn enn_group_all_gather(
        group: *mut enn_group,
        whole: *const C_tensor,
        own: *const C_tensor,
        out: *mut *mut enn_work,
    ) -> i32;
    #[cfg(feature = "cuda")]
    pub(super) fn enn_group_reduce_scatter(
        group: *mut enn_group,
        whole: *const C_tensor,
        own: *const C_tensor,
        out: *mut *mut enn_work,
    ) -> i32;
    pub(super) fn enn_group_barrier(group: *mut enn_group, timeout_ms: i64, out: *mut *mut enn_work) -> i32;
    pub(super) fn enn_group_end(group: *mut enn_group, abort: i32, timeout_ms: i64) -> i32;

    pub(super) fn enn_work_wait(work: *mut enn_work, timeout_ms: i64, waited_ns: *mut i64) -> i32;
    pub(super) fn enn_work_order(work: *mut enn_work, timeout_ms: i64) -> i32;
    pub(super) fn enn_work_is_done(work: *mut enn_work, done: *mut i32) -> i32;
    pub(super) fn enn_work_free(work: *mut enn_work);
}
