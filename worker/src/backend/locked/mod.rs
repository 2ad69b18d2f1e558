//! Shared memory that a CUDA device copies to by itself, without a detour over memory of its driver's.

mod result;
mod sys;

pub use result::Locked;
