//! ENN's worker trains and serves the ENN model on libtorch. It is a library, so that users can build workers around
//! their own model, and the binary `enn-worker`.
//!
//! Layers (an import never points up): `backend < op < kernel, precision < autograd < functional, params < layer <
//! block, loss < model < export < session`. The modules `data`, `comm`, `optim`, `checkpoint`, `profile` know tensors
//! and parameter names, not `model`; only `session` uses all.

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

/// Bindings of the libtorch that this library is built against, for user-defined workers.
pub use tch;
