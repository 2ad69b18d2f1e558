//! CUDA events with timing, which measure the work between them.

mod result;
mod sys;

pub use result::Event;
