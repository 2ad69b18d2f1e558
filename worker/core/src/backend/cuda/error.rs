//! Errors of building and launching kernels.

use crate::backend::torch::ShimError;
use tch::TchError;

/// Why a module could not be built. The error is kept, so that the next call fails at once with the same message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// A library that is opened at run time is not there.
    #[error("{library} was not found\nhint: it comes with CUDA; put its folder into LD_LIBRARY_PATH")]
    Library {
        /// Name of the library.
        library: &'static str,
    },
    /// NVRTC refused the source.
    #[error("NVRTC did not compile {name} for {arch} ({status}): {log}")]
    Compile {
        /// Name of the variant, i.e. the module and its specialisation.
        name: String,
        /// Target architecture, e.g. `sm_90`.
        arch: String,
        status: String,
        log: String,
    },
    /// An error of the driver.
    #[error("the driver failed to {what} for {name} on CUDA device {device}: {status}")]
    Driver {
        /// The attempted action, e.g. "load a module".
        what: &'static str,
        name: String,
        /// Index of the device.
        device: usize,
        status: String,
    },
}

/// Why one of our own kernels did not run.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// The module could not be made ready.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The launch was refused.
    #[error("kernel {kernel} was not launched on CUDA device {device}: {status}")]
    Launch {
        /// Name of the kernel.
        kernel: &'static str,
        /// Index of the device.
        device: usize,
        status: String,
    },
    /// The kernel is not written for an operand.
    #[error("{kernel}: operand {operand} is {found}, expected {expected}")]
    Operand {
        /// Name of the kernel.
        kernel: &'static str,
        /// Name of the operand.
        operand: &'static str,
        /// Kind, shape, strides and device of the operand.
        found: String,
        /// Description of a valid operand.
        expected: &'static str,
    },
    /// An error of libtorch, e.g. no memory for a result.
    #[error("libtorch: {0}")]
    Torch(#[from] TchError),
    /// An error of the C++ shim.
    #[error("libtorch's CUDA runtime: {0}")]
    Shim(#[from] ShimError),
}
