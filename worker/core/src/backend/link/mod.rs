//! Memory of a CUDA device that other processes of this host map, and a copy stream on which the device's copy engines move parts of it
//! to their memory. Words in host memory, which the devices write and wait for, order the copies.
//!
//! Copies and waits use none of the device's multiprocessors; only the reductions do, for as long as they read memory.

mod gpu;
mod mmap;
mod result;

pub use gpu::{Gpu, LinkError};
pub use mmap::{Memory, Words};
pub use result::{CopyStream, PartReduction, RankReduction, StreamEvent};
