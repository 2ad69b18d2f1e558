//! Copies that a CUDA device makes beside its computation, out of its memory to page-locked memory of the host.

mod result;
mod sys;

pub use result::{Copier, Copying};
