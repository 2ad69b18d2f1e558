//! Asynchronous copies from a CUDA device to page-locked memory of the host, on a stream of their own.

mod result;
mod sys;

pub use result::{Copier, PendingCopy};
