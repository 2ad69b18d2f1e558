//! The ENN model: `layer < block, loss < model`; `optim` knows tensors and parameter names only.

pub mod block;
pub mod layer;
pub mod loss;
pub mod model;
pub mod optim;
