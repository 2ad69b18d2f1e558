//! Graphs with owners: a capture is ended or discarded, and a graph is freed when dropped.

use crate::backend::torch::{ShimError, check, handle, number};
use std::ffi::c_void;
use std::ptr;
use tch::{TchError, Tensor};

// `shim/cuda_graph.cpp`.
unsafe extern "C" {
    fn enn_cuda_use_own_stream(device: i32) -> i32;
    fn enn_cuda_synchronize(device: i32) -> i32;
    fn enn_cuda_memory(device: i32, free_total: *mut u64) -> i32;
    fn enn_graph_pool(out: *mut u64) -> i32;
    fn enn_graph_begin(pool: *const u64, out: *mut *mut c_void) -> i32;
    fn enn_graph_records(out: *mut i32) -> i32;
    fn enn_graph_end(graph: *mut c_void) -> i32;
    fn enn_graph_replay(graph: *mut c_void) -> i32;
    fn enn_graph_free(graph: *mut c_void);
}

/// Device memory that the graphs of one step share.
#[derive(Debug, Clone, Copy)]
pub struct Pool([u64; 2]);

impl Pool {
    pub fn new() -> Result<Self, ShimError> {
        let mut id = [0; 2];
        // SAFETY: `id` has room for the two numbers.
        check(unsafe { enn_graph_pool(id.as_mut_ptr()) })?;
        Ok(Self(id))
    }
}

/// A capture in progress on this thread's current stream. Dropping it discards the capture.
#[derive(Debug)]
pub struct Capture(*mut c_void);

impl Capture {
    /// Begins a capture: launches on this thread's current stream are recorded and not run.
    ///
    /// # Errors
    /// On the default stream, or when a capture is in progress.
    pub fn begin(pool: Pool) -> Result<Self, ShimError> {
        // SAFETY: the pool has two numbers.
        handle(|graph| unsafe { enn_graph_begin(pool.0.as_ptr(), graph) }).map(Self)
    }

    /// Ends the capture.
    ///
    /// # Errors
    /// When something that cannot be captured was launched.
    pub fn end(mut self) -> Result<Graph, ShimError> {
        let graph = std::mem::replace(&mut self.0, ptr::null_mut());
        let graph = Graph(graph);
        // SAFETY: the graph came from `enn_graph_begin` and has not been ended.
        check(unsafe { enn_graph_end(graph.0) })?;
        Ok(graph)
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: a capture that was begun and not ended; its error is of no interest, it is thrown away.
            unsafe {
                let _ = enn_graph_end(self.0);
                enn_graph_free(self.0);
            }
        }
    }
}

#[derive(Debug)]
pub struct Graph(*mut c_void);

impl Graph {
    pub fn replay(&self) -> Result<(), ShimError> {
        // SAFETY: the graph was ended; it lives as long as `self`.
        check(unsafe { enn_graph_replay(self.0) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made by `enn_graph_begin` and given up here once.
        unsafe { enn_graph_free(self.0) }
    }
}

/// Whether launches of this thread on its CUDA device are captured instead of run.
pub fn records() -> Result<bool, ShimError> {
    // SAFETY: room for the number.
    Ok(number(|records| unsafe { enn_graph_records(records) })? != 0)
}

/// Returns a tensor over the memory that `tensor` has now, even if its storage is replaced later. It is valid as long as a graph holds
/// that memory.
pub fn at_its_address(tensor: &Tensor) -> Result<Tensor, TchError> {
    let sizes = tensor.size();
    let strides = tensor.stride();
    // SAFETY: sizes and strides are those of the memory at that address, which a graph or a leaf of the step holds.
    unsafe { Tensor::f_from_blob(tensor.data_ptr().cast(), &sizes, &strides, tensor.kind(), tensor.device()) }
}

/// Makes a new stream the current one of this thread on CUDA device `device`, as the default stream cannot be captured.
pub fn use_own_stream(device: usize) -> Result<(), ShimError> {
    // SAFETY: no pointers.
    check(unsafe { enn_cuda_use_own_stream(device as i32) })
}

/// Waits until the device has completed all work.
pub fn synchronize(device: usize) -> Result<(), ShimError> {
    // SAFETY: no pointers.
    check(unsafe { enn_cuda_synchronize(device as i32) })
}

/// Returns the free and the total bytes of a device's memory.
pub fn memory(device: usize) -> Result<(u64, u64), ShimError> {
    let mut both = [0; 2];
    // SAFETY: room for the two numbers.
    check(unsafe { enn_cuda_memory(device as i32, both.as_mut_ptr()) })?;
    Ok((both[0], both[1]))
}
