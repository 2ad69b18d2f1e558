//! Capabilities of the device, and libtorch's own TF32 switch.

use super::decide::Support;
use crate::backend::torch::{ShimError, safe};
use tch::Device;

/// Returns the capability of a device.
///
/// # Errors
/// When CUDA does not report the compute capability.
pub fn support(device: Device) -> Result<Support, ShimError> {
    match device {
        Device::Cuda(index) => {
            let (major, minor) = safe::compute_capability(index)?;
            Ok(Support::Cuda(major, minor))
        }
        _ => Ok(Support::Cpu),
    }
}

/// Sets, for the whole process, whether products of f32 matrices on CUDA may use 10-bit mantissas (TF32).
///
/// # Errors
/// When libtorch refuses.
pub fn allow_tf32(on: bool) -> Result<(), ShimError> {
    safe::allow_tf32(on)
}
