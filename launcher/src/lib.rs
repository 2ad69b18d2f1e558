//! The launcher: the binary `enn` and its Rust API.

pub mod baselines;
pub mod ui;
