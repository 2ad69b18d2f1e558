//! The state of processes that hang: call stacks by any available tool, and the dumps of NCCL's flight recorder.
//!
//! A Python program is inspected by py-spy; any other program, or without py-spy, by eu-stack, which takes a tenth of a second,
//! or gdb, which takes half a minute for a process with libtorch; the kernel's state is always added. A script of the package enn writes its
//! stack itself while it does no step; then gdb is not needed. **Invariant:**
//! collecting ends by its time limit and changes nothing in the inspected processes.

mod collect;
mod frames;
mod proc;
mod recorder;
mod tool;

pub use collect::{RankStack, StackTarget, Stacks, collect, collect_with};
pub use proc::activity;
pub use tool::Tools;
