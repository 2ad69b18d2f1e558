//! What can go wrong between a kernel's source and its launch.

use crate::backend::torch::ShimError;
use tch::TchError;

/// Why a module could not be made ready. Kept, so that the next call fails at once with the same words.
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
        /// Module and what it was specialised for.
        name: String,
        /// Architecture, e.g. `sm_90`.
        arch: String,
        status: String,
        log: String,
    },
    /// The driver refused.
    #[error("the driver failed to {what} for {name} on CUDA device {device}: {status}")]
    Driver {
        /// What was asked of it.
        what: &'static str,
        name: String,
        /// Index of the device.
        device: usize,
        status: String,
    },
}

/// Reasons an own kernel did not run.
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
        /// Its kind, shape, strides and device.
        found: String,
        /// What the kernel takes, in words.
        expected: &'static str,
    },
    /// libtorch refused, e.g. no memory for a result.
    #[error("libtorch: {0}")]
    Torch(#[from] TchError),
    /// The shim refused.
    #[error("libtorch's CUDA runtime: {0}")]
    Shim(#[from] ShimError),
}
