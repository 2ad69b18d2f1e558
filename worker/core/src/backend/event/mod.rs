//! CUDA events with timing, which measure the work between them.

mod result;

pub use result::Event;
