//! The launcher: the binary `enn` and its Rust API.

pub mod agent;
pub mod baselines;
pub mod convert;
pub mod doctor;
pub mod gather;
pub mod ui;
