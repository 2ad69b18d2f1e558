//! A stream on which kernels are launched as graphs of one kernel each.
//!
//! Measured on H100s (`tests/bench/_streams.py`): kernels of a graph follow each other after 0.98 µs as long as the process has launched
//! kernels outside graphs on one stream only. Once it has launched about five on a second stream, the gap is 1.17 µs for good: 0.6 ms in a
//! step of 2,500 kernels.
//! Graphs, copies between devices, and word operations have no such effect, on any number of streams.

use super::driver::CudaStream;
use super::result::{Function, LaunchGrid, SingleKernelGraph};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// One stream of a device, and the graphs that were launched on it.
#[derive(Debug)]
pub(in crate::backend) struct GraphStream {
    pub(in crate::backend) device: usize,
    pub(in crate::backend) stream: CudaStream,
    kernels: Mutex<HashMap<Function, SingleKernelGraph>>,
}

impl GraphStream {
    pub(in crate::backend) fn new(device: usize, stream: CudaStream) -> Self {
        Self { device, stream, kernels: Mutex::default() }
    }

    /// Launches after all earlier work of the stream. The arguments are those of [`launch`](super::result::launch).
    pub(super) fn launch(
        &self,
        function: Function,
        grid: LaunchGrid,
        slots: &mut [u64],
        starts: &[u16],
    ) -> Result<(), String> {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = kernels.get(&function) {
            known.change(grid, slots, starts)?;
            return known.launch(self.stream);
        }
        let made = SingleKernelGraph::new(function, grid, slots, starts)?;
        kernels.entry(function).or_insert(made).launch(self.stream)
    }
}
