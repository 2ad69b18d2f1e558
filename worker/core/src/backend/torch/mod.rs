//! libtorch: tch's fallible methods, and the shim for what tch lacks.
//!
//! The CPU kernels fail where an operand is not on the CPU, or has another kind, layout or size than the function says.

mod result;
pub mod safe;
mod sys;
#[cfg(test)]
mod threads_tests;

pub use result::over;
pub(super) use result::{check, handle, number};

/// The C++ side raised an exception.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct ShimError {
    /// The exception's own words.
    pub message: String,
}
