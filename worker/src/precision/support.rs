//! What this process's libtorch and device can do, and the one switch that is libtorch's own.

use super::decide::Support;
use crate::backend::torch::{ShimError, safe};
use tch::Device;

/// What a device can do.
///
/// # Errors
/// When CUDA does not tell its compute capability.
pub fn support(device: Device) -> Result<Support, ShimError> {
    match device {
        Device::Cuda(index) => {
            let (major, minor) = safe::compute_capability(index)?;
            Ok(Support::Cuda(major, minor))
        }
        _ => Ok(Support::Cpu),
    }
}

/// Lets products of f32 matrices on CUDA drop to 10-bit mantissas, or not; for the whole process.
///
/// # Errors
/// When libtorch refuses.
pub fn allow_tf32(on: bool) -> Result<(), ShimError> {
    safe::allow_tf32(on)
}
