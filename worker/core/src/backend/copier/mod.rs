//! Asynchronous copies from a CUDA device to page-locked memory of the host, on a stream of their own.

mod result;

pub use result::{Copier, PendingCopy};
