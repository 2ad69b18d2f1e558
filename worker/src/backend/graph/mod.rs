//! CUDA graphs: a run of launches captured once and launched again as one.
//!
//! **Invariant:** a graph holds addresses. Whoever replays it keeps every tensor that was bound outside its capture, and never
//! gives it another storage.

mod result;
mod sys;

use super::torch::ShimError;
pub use result::{Capture, Graph, Pool};
use tch::{TchError, Tensor};

/// Makes a stream of its own the current one of this thread on CUDA device `device`; the default one cannot be captured.
///
/// # Errors
/// Without CUDA.
pub fn use_own_stream(device: usize) -> Result<(), ShimError> {
    result::use_own_stream(device)
}

/// Whether what this thread launches on its CUDA device is captured instead of run.
///
/// # Errors
/// What the device says.
pub fn records() -> Result<bool, ShimError> {
    result::records()
}

/// The memory that `tensor` has now, whatever its storage is given later. For as long as a graph holds that memory.
///
/// # Errors
/// What libtorch says.
pub fn at_its_address(tensor: &Tensor) -> Result<Tensor, TchError> {
    result::at_its_address(tensor)
}

/// Free and total bytes of a device's memory.
///
/// # Errors
/// Without CUDA.
pub fn memory(device: usize) -> Result<(u64, u64), ShimError> {
    result::memory(device)
}

/// Waits until the device has done everything.
///
/// # Errors
/// What the device failed with.
pub fn synchronize(device: usize) -> Result<(), ShimError> {
    result::synchronize(device)
}
