//! Moments on a CUDA stream, for measuring what ran between them.

mod result;
mod sys;

pub use result::Event;
