//! The functions of `shim/cuda_graph.cpp`.
//!
//! **Invariant:** no logic; only [`super::result`] calls these.

use std::ffi::c_void;

unsafe extern "C" {
    pub(super) fn enn_cuda_use_own_stream(device: i32) -> i32;
    pub(super) fn enn_cuda_synchronize(device: i32) -> i32;
    pub(super) fn enn_cuda_memory(device: i32, free_total: *mut u64) -> i32;
    pub(super) fn enn_graph_pool(out: *mut u64) -> i32;
    pub(super) fn enn_graph_begin(pool: *const u64, out: *mut *mut c_void) -> i32;
    pub(super) fn enn_graph_records(out: *mut i32) -> i32;
    pub(super) fn enn_graph_end(graph: *mut c_void) -> i32;
    pub(super) fn enn_graph_replay(graph: *mut c_void) -> i32;
    pub(super) fn enn_graph_free(graph: *mut c_void);
}
