//! The launcher: the binary `enn` and its Rust API.

pub mod agent;
pub mod baselines;
pub mod doctor;
pub mod stage;
pub mod ui;
