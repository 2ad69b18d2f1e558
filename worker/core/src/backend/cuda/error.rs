//! Errors of building and launching kernels.

use crate::backend::torch::ShimError;
use tch::TchError;

/// Why a module could not be built. The error is kept, so that the next call fails at once with the same message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    #[error("{library} was not found\nhint: it comes with CUDA; put its folder into LD_LIBRARY_PATH")]
    Library { library: &'static str },
    #[error("NVRTC did not compile {name} for {arch} ({status}): {log}")]
    Compile {
        /// Name of the variant, i.e. the module and its specialisation.
        name: String,
        /// Target architecture, e.g. `sm_90`.
        arch: String,
        status: String,
        log: String,
    },
    #[error("the driver failed to {what} for {name} on CUDA device {device}: {status}")]
    Driver {
        /// The attempted action, e.g. "load a module".
        what: &'static str,
        name: String,
        device: usize,
        status: String,
    },
}

/// Why one of our own kernels did not run.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    #[error(transparent)]
    Build(#[from] BuildError),
    #[error("kernel {kernel} was not launched on CUDA device {device}: {status}")]
    Launch { kernel: &'static str, device: usize, status: String },
    #[error("{kernel}: operand {operand} is {found}, expected {expected}")]
    Operand {
        kernel: &'static str,
        operand: &'static str,
        /// Kind, shape, strides and device of the operand.
        found: String,
        expected: &'static str,
    },
    #[error("libtorch: {0}")]
    Torch(#[from] TchError),
    #[error("libtorch's CUDA runtime: {0}")]
    Shim(#[from] ShimError),
}
