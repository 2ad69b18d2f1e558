//! Graphs with owners: a capture is ended or discarded, and a graph is freed when dropped.

use super::sys;
use crate::backend::torch::{ShimError, check};
use std::ffi::c_void;
use std::ptr;
use tch::{TchError, Tensor};

/// Device memory that the graphs of one step share.
#[derive(Debug, Clone, Copy)]
pub struct Pool([u64; 2]);

impl Pool {
    /// Returns a new pool.
    ///
    /// # Errors
    /// Without CUDA.
    pub fn new() -> Result<Self, ShimError> {
        let mut id = [0; 2];
        // SAFETY: `id` has room for the two numbers.
        check(unsafe { sys::enn_graph_pool(id.as_mut_ptr()) })?;
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
        let mut graph = ptr::null_mut();
        // SAFETY: the pool has two numbers and `graph` is writable.
        check(unsafe { sys::enn_graph_begin(pool.0.as_ptr(), &raw mut graph) })?;
        Ok(Self(graph))
    }

    /// Ends the capture.
    ///
    /// # Errors
    /// When something that cannot be captured was launched.
    pub fn end(mut self) -> Result<Graph, ShimError> {
        let graph = std::mem::replace(&mut self.0, ptr::null_mut());
        let graph = Graph(graph);
        // SAFETY: the graph came from `enn_graph_begin` and has not been ended.
        check(unsafe { sys::enn_graph_end(graph.0) })?;
        Ok(graph)
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: a capture that was begun and not ended; its error is of no interest, it is thrown away.
            unsafe {
                let _ = sys::enn_graph_end(self.0);
                sys::enn_graph_free(self.0);
            }
        }
    }
}

/// A captured sequence of launches.
#[derive(Debug)]
pub struct Graph(*mut c_void);

impl Graph {
    /// Launches the graph on this thread's current stream.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn replay(&self) -> Result<(), ShimError> {
        // SAFETY: the graph was ended; it lives as long as `self`.
        check(unsafe { sys::enn_graph_replay(self.0) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made by `enn_graph_begin` and given up here once.
        unsafe { sys::enn_graph_free(self.0) }
    }
}

pub(super) fn records() -> Result<bool, ShimError> {
    let mut records = 0;
    // SAFETY: room for the number.
    check(unsafe { sys::enn_graph_records(&raw mut records) })?;
    Ok(records != 0)
}

pub(super) fn at_its_address(tensor: &Tensor) -> Result<Tensor, TchError> {
    let sizes = tensor.size();
    let strides = tensor.stride();
    // SAFETY: sizes and strides are those of the memory at that address, which a graph or a leaf of the step holds.
    unsafe { Tensor::f_from_blob(tensor.data_ptr().cast(), &sizes, &strides, tensor.kind(), tensor.device()) }
}

pub(super) fn use_own_stream(device: usize) -> Result<(), ShimError> {
    // SAFETY: no pointers.
    check(unsafe { sys::enn_cuda_use_own_stream(device as i32) })
}

pub(super) fn synchronize(device: usize) -> Result<(), ShimError> {
    // SAFETY: no pointers.
    check(unsafe { sys::enn_cuda_synchronize(device as i32) })
}

pub(super) fn memory(device: usize) -> Result<(u64, u64), ShimError> {
    let mut both = [0; 2];
    // SAFETY: room for the two numbers.
    check(unsafe { sys::enn_cuda_memory(device as i32, both.as_mut_ptr()) })?;
    Ok((both[0], both[1]))
}
