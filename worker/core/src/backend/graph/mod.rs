//! CUDA graphs: a sequence of launches that is captured once and replayed as a unit.
//!
//! **Invariant:** a graph holds addresses. The owner keeps every tensor that was bound outside the capture alive, and never
//! changes its storage.

mod result;
mod sys;

use super::torch::ShimError;
pub use result::{Capture, Graph, Pool};
use tch::{TchError, Tensor};

/// Makes a new stream the current one of this thread on CUDA device `device`, as the default stream cannot be captured.
///
/// # Errors
/// Without CUDA.
pub fn use_own_stream(device: usize) -> Result<(), ShimError> {
    result::use_own_stream(device)
}

/// Whether launches of this thread on its CUDA device are captured instead of run.
///
/// # Errors
/// Errors of the device.
pub fn records() -> Result<bool, ShimError> {
    result::records()
}

/// Returns a tensor over the memory that `tensor` has now, even if its storage is replaced later. It is valid as long as a graph holds
/// that memory.
///
/// # Errors
/// Errors of libtorch.
pub fn at_its_address(tensor: &Tensor) -> Result<Tensor, TchError> {
    result::at_its_address(tensor)
}

/// Returns the free and the total bytes of a device's memory.
///
/// # Errors
/// Without CUDA.
pub fn memory(device: usize) -> Result<(u64, u64), ShimError> {
    result::memory(device)
}

/// Waits until the device has completed all work.
///
/// # Errors
/// The error of a failed device.
pub fn synchronize(device: usize) -> Result<(), ShimError> {
    result::synchronize(device)
}
