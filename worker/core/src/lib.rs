//! The execution core on libtorch.
//!
//! A function that returns an error of libtorch (`TchError`, `ShimError`) fails where libtorch refuses the operands, memory is exhausted or a
//! device has failed. Its documentation names further errors only.
//!
//! Layers (an import never points up): `backend < op < kernel, precision < autograd < functional, params`; `profile` watches all of them.

pub mod autograd;
pub mod backend;
pub mod error;
pub mod functional;
pub mod kernel;
pub mod op;
pub mod params;
pub mod precision;
pub mod profile;
