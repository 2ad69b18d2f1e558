//! A stream whose kernels are given to it as graphs of one kernel each.
//!
//! Measured on H100s (`tests/bench/_streams.py`): kernels of a graph follow each other after 0.98 µs as long as the process gave kernels
//! outside graphs to one stream at most, and after 1.17 once it gave some five to a second one, for good: 0.6 ms of a step of 2,500.
//! Graphs, copies between devices, and words do not count, on however many streams.

use super::driver::Stream;
use super::result::{Function, Grid, Single};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// One stream of a device, and the graphs that were launched on it.
#[derive(Debug)]
pub(in crate::backend) struct Lane {
    pub(in crate::backend) device: usize,
    pub(in crate::backend) stream: Stream,
    kernels: Mutex<HashMap<Function, Single>>,
}

impl Lane {
    pub(in crate::backend) fn new(device: usize, stream: Stream) -> Self {
        Self { device, stream, kernels: Mutex::default() }
    }

    /// Launches behind all that the stream was given. The arguments are as for [`launch`](super::result::launch).
    pub(super) fn launch(
        &self,
        function: Function,
        grid: Grid,
        slots: &mut [u64],
        starts: &[u16],
    ) -> Result<(), String> {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = kernels.get(&function) {
            known.change(grid, slots, starts)?;
            return known.launch(self.stream);
        }
        let made = Single::new(function, grid, slots, starts)?;
        kernels.entry(function).or_insert(made).launch(self.stream)
    }
}
