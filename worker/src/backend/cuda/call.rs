//! One launch in the making: the kernel, then its arguments in order.
//!
//! **Invariant:** the functions of a family give each kernel the arguments its source declares; nothing checks that later.

use super::check::Check;
use super::driver;
use super::engine;
use super::error::CudaError;
use super::lane::Lane;
use super::result::{self, Function, Grid};
use super::source::Variant;
use smallvec::SmallVec;
use tch::Tensor;

/// A kernel and the arguments given so far.
#[derive(Debug)]
pub(super) struct Call<'a> {
    variant: &'a Variant,
    entry: &'static str,
    slots: SmallVec<[u64; 32]>,
    starts: SmallVec<[u16; 24]>,
}

impl<'a> Call<'a> {
    pub(super) fn new(variant: &'a Variant, entry: &'static str) -> Self {
        Self { variant, entry, slots: SmallVec::new(), starts: SmallVec::new() }
    }

    fn slot(mut self, value: u64) -> Self {
        self.starts.push(self.slots.len() as u16);
        self.slots.push(value);
        self
    }

    /// The address of a tensor's first element.
    pub(super) fn tensor(self, tensor: &Tensor) -> Self {
        self.slot(tensor.data_ptr() as u64)
    }

    /// The address of a tensor's first element, or null.
    pub(super) fn maybe(self, tensor: Option<&Tensor>) -> Self {
        self.slot(tensor.map_or(0, |tensor| tensor.data_ptr() as u64))
    }

    /// An address on the device.
    pub(super) fn address(self, address: u64) -> Self {
        self.slot(address)
    }

    /// A 64-bit integer.
    pub(super) fn int(self, value: i64) -> Self {
        self.slot(value.cast_unsigned())
    }

    /// An `int` or `unsigned`.
    pub(super) fn word(self, value: u32) -> Self {
        self.slot(u64::from(value))
    }

    /// A `float`.
    pub(super) fn float(self, value: f64) -> Self {
        self.slot(u64::from((value as f32).to_bits()))
    }

    /// A structure passed by value, as 64-bit words.
    pub(super) fn structure(mut self, words: &[u64]) -> Self {
        self.starts.push(self.slots.len() as u16);
        self.slots.extend_from_slice(words);
        self
    }

    /// Makes the kernel ready without launching it: where several launches write in place, none may fail behind another.
    pub(super) fn make_ready(&self, on: &Tensor) -> Result<(), CudaError> {
        self.make_ready_on(Check { kernel: self.entry }.device("0", on)?)
    }

    /// [`Call::make_ready`] on that device.
    pub(super) fn make_ready_on(&self, device: usize) -> Result<(), CudaError> {
        Ok(engine::function(device, self.variant, self.entry).map(|_| ())?)
    }

    /// Launches on libtorch's current stream of `on`'s device. No blocks, no launch.
    pub(super) fn launch(self, on: &Tensor, grid: Grid) -> Result<(), CudaError> {
        if grid.blocks == 0 {
            return Ok(());
        }
        let device = Check { kernel: self.entry }.device("0", on)?;
        let stream = driver::current_stream(device)?;
        self.give(device, |function, slots, starts| result::launch(function, grid, stream, slots, starts))
    }

    /// Launches on that lane.
    pub(super) fn launch_on(self, lane: &Lane, grid: Grid) -> Result<(), CudaError> {
        self.give(lane.device, |function, slots, starts| lane.launch(function, grid, slots, starts))
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

/// A grid without dynamic shared memory.
pub(super) fn grid(blocks: u32, threads: u32) -> Grid {
    Grid { blocks, threads: (threads, 1), shared: 0 }
}
