//! libtorch: tch's fallible methods, and the shim for what tch lacks.

mod result;
pub mod safe;
mod sys;
#[cfg(test)]
mod threads_tests;

pub(super) use result::check;
pub use result::over;

/// The C++ side raised an exception.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct ShimError {
    /// The exception's own words.
    pub message: String,
}
