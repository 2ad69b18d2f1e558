//! ENN's worker: trains and serves the ENN model on libtorch. A library, so that users build workers around their own model,
//! and the binary `enn-worker`.
//!
//! Floors (an arrow never points up): `backend < op < kernel, precision < autograd < functional, params < layer < block, loss < model < export < session`.
//! Side towers `data`, `comm`, `optim`, `checkpoint`, `profile` know tensors and parameter names, not `model`; only `session` sees all.

pub mod autograd;
pub mod backend;
pub mod block;
pub mod checkpoint;
pub mod comm;
pub mod data;
pub mod error;
pub mod export;
pub mod functional;
pub mod kernel;
pub mod layer;
pub mod loss;
pub mod model;
pub mod op;
pub mod optim;
pub mod params;
pub mod precision;
pub mod probe;
pub mod profile;
pub mod session;

/// libtorch's bindings of the version this library is built against, for programs of one's own.
pub use tch;
