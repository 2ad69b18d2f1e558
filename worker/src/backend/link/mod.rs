//! Memory of a CUDA device that other processes of this host map, and a stream beside the one that computes, on which the device's
//! copy engines move parts of it to theirs, in turns that all of them keep by words in memory of the host.
//!
//! Copies and turns take none of the device's processors; adding up what came does, for as long as memory takes to be read.

mod gpu;
mod mmap;
mod result;

pub use gpu::{Gpu, LinkError};
pub use mmap::{Memory, Words};
pub use result::{Beside, Moment, Places, Together};
