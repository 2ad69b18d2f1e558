//! What processes that hang are doing: call stacks by whatever tool there is, and the dumps of NCCL's flight recorder.
//!
//! A Python program is asked through py-spy, any other, or without py-spy, through eu-stack, which takes a tenth of a second,
//! or gdb, which takes half a minute for a process with libtorch; what the kernel tells is always added. **Invariant:**
//! collecting ends by its time limit and changes nothing in the processes looked at.

mod collect;
mod frames;
mod proc;
mod recorder;
mod tool;

pub use collect::{RankStack, Stacks, Target, collect, collect_with};
pub use proc::doing;
pub use tool::Tools;
