//! Builder of a kernel launch: the kernel, then its arguments in order.
//!
//! **Invariant:** callers pass the arguments that the kernel's source declares; this is not checked.

use super::check::Check;
use super::driver;
use super::engine;
use super::error::CudaError;
use super::graph_stream::GraphStream;
use super::result::{self, Function, LaunchGrid};
use super::source::Variant;
use smallvec::SmallVec;
use tch::Tensor;

#[derive(Debug)]
pub(super) struct KernelCall<'a> {
    variant: &'a Variant,
    entry: &'static str,
    slots: SmallVec<[u64; 32]>,
    starts: SmallVec<[u16; 24]>,
}

impl<'a> KernelCall<'a> {
    pub(super) fn new(variant: &'a Variant, entry: &'static str) -> Self {
        Self { variant, entry, slots: SmallVec::new(), starts: SmallVec::new() }
    }

    fn slot(mut self, value: u64) -> Self {
        self.starts.push(self.slots.len() as u16);
        self.slots.push(value);
        self
    }

    /// Appends the address of a tensor's first element.
    pub(super) fn tensor(self, tensor: &Tensor) -> Self {
        self.slot(tensor.data_ptr() as u64)
    }

    /// Appends the address of a tensor's first element, or null.
    pub(super) fn maybe(self, tensor: Option<&Tensor>) -> Self {
        self.slot(tensor.map_or(0, |tensor| tensor.data_ptr() as u64))
    }

    pub(super) fn address(self, address: u64) -> Self {
        self.slot(address)
    }

    pub(super) fn int(self, value: i64) -> Self {
        self.slot(value.cast_unsigned())
    }

    /// Appends an `int` or `unsigned`.
    pub(super) fn word(self, value: u32) -> Self {
        self.slot(u64::from(value))
    }

    pub(super) fn float(self, value: f64) -> Self {
        self.slot(u64::from((value as f32).to_bits()))
    }

    /// Appends a structure passed by value, as 64-bit words.
    pub(super) fn structure(mut self, words: &[u64]) -> Self {
        self.starts.push(self.slots.len() as u16);
        self.slots.extend_from_slice(words);
        self
    }

    /// Compiles and loads the kernel without launching it. Where several launches write in place, a later one must not fail to compile.
    pub(super) fn make_ready(&self, on: &Tensor) -> Result<(), CudaError> {
        self.make_ready_on(Check { kernel: self.entry }.device("0", on)?)
    }

    /// Compiles and loads the kernel on a device.
    pub(super) fn make_ready_on(&self, device: usize) -> Result<(), CudaError> {
        Ok(engine::function(device, self.variant, self.entry).map(|_| ())?)
    }

    /// Launches on libtorch's current stream of `on`'s device. A grid without blocks is not launched.
    pub(super) fn launch(self, on: &Tensor, grid: LaunchGrid) -> Result<(), CudaError> {
        if grid.blocks == 0 {
            return Ok(());
        }
        let device = Check { kernel: self.entry }.device("0", on)?;
        let stream = driver::current_stream(device)?;
        self.give(device, |function, slots, starts| result::launch(function, grid, stream, slots, starts))
    }

    pub(super) fn launch_on(self, graph_stream: &GraphStream, grid: LaunchGrid) -> Result<(), CudaError> {
        self.give(graph_stream.device, |function, slots, starts| graph_stream.launch(function, grid, slots, starts))
    }

    fn give(
        mut self,
        device: usize,
        launch: impl FnOnce(Function, &mut [u64], &[u16]) -> Result<(), String>,
    ) -> Result<(), CudaError> {
        let function = engine::function(device, self.variant, self.entry)?;
        launch(function, &mut self.slots, &self.starts).map_err(|status| CudaError::Launch {
            kernel: self.entry,
            device,
            status,
        })
    }
}

/// Returns a grid without dynamic shared memory.
pub(super) fn grid(blocks: u32, threads: u32) -> LaunchGrid {
    LaunchGrid { blocks, threads: (threads, 1), shared: 0 }
}
