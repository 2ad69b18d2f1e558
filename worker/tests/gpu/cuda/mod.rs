//! The own CUDA kernels: they compile for every architecture we name (where NVRTC is), and give what the plain reference
//! gives (where a CUDA device is). Without either, a test says so and ends.
//!
//! `on_cpu/check.py` runs the same sources on a CPU.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "tests: what goes wrong panics, what is skipped is said")]

mod compile;
mod large;
mod operands;
mod staging;
mod table;
mod tiles;
mod updates;
