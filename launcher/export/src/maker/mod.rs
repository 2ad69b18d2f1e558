//! Artifacts that only third-party tools can make: packages of AOTInductor and programs of ExecuTorch, from a PT2 archive; engines of
//! TensorRT, from an ONNX file.
//!
//! ```text
//! enn ─► python -I -W ignore -c SCRIPT      a line of JSON each way: the job, then the result
//! ```
//! An interpreter is given by the caller, or made once by [`prepare`]. Its packages must have the pinned versions, which are
//! checked before anything else is done.
//!
//! **Invariant:** a tool is a process group that ends with its owner, by itself, at a limit, or when the other end of its pipe
//! closes; a file is whole or absent. The first line to a process states its memory limit, which it applies to itself before it
//! loads anything.

pub mod aoti;
pub mod apart;
pub mod cause;
mod child;
pub mod exchange;
pub mod executorch;
mod limits;
mod pin;
pub mod prepare;
pub mod tensorrt;
#[cfg(test)]
mod tests;
mod tool;
mod unix;
mod working;

pub use limits::Limits;
pub use pin::{Pin, TORCH};
pub use tool::{LOG, log_of};
pub use working::Made;
