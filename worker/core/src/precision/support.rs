//! Capabilities of the device.

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
