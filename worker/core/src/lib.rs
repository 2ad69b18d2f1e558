//! The execution core on libtorch.
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
