//! Own CUDA kernels, compiled at run time by NVRTC for the device at hand and launched on libtorch's current stream.
//!
//! One Rust file per family, beside one file of CUDA C++ in `src/`. A function here takes tensors and returns tensors; it
//! refuses operands it was not written for, and leaves the choice between kernels to others.
//!
//! **Invariant:** no launch waits for the device or allocates but through libtorch, so that every launch can be captured
//! in a graph once its module is loaded; results do not depend on the order in which blocks run.

pub mod adamw;
pub mod attention;
pub mod cache;
mod call;
mod check;
pub mod cross_entropy;
pub mod dropout;
mod engine;
mod error;
pub mod gated;
pub mod norm;
mod result;
pub mod retention;
mod source;
mod sys;

pub use engine::{compile, is_present};
pub use error::CudaError;
pub use source::{Element, Source, Variant};
