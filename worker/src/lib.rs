//! ENN's worker trains and serves the ENN model on libtorch. It is a library, so that users can build workers around
//! their own model, and the binary `enn-worker`.
//!
//! Layers (an import never points up): `enn-core` (tensors, operations, recorded programs) < `enn-comm` (collectives), `enn-model`
//! (layers, blocks, losses, optimizers) < `export` < `session`. The modules `data` and `checkpoint` know tensors and parameter
//! names, not the model; only `session` uses all. What users need of the packages below is offered here by the same names.

pub mod checkpoint;
pub mod collective;
pub mod data;
pub mod export;
pub mod probe;
pub mod session;
pub mod sharding;

pub use enn_comm as comm;
pub use enn_core::{autograd, backend, error, functional, kernel, op, params, precision, profile};
pub use enn_model::{block, layer, loss, model, optim};
/// Bindings of the libtorch that this library is built against, for user-defined workers.
pub use tch;
