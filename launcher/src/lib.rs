//! The launcher: the binary `enn` and its Rust API.
//!
//! `cli → api`, and from there the packages: `enn-cluster` keeps workers alive, `enn-data` stages tables and compares models,
//! `enn-checkpoint` gathers, converts and uploads, `enn-serve` answers requests, `enn-export` writes models for other runtimes,
//! `enn-ui` shows a run, and all of them stand on `enn-process`. `torchrun` runs any program (LAUNCH.md). `facts` is read once and
//! passed on; `libtorch` is searched for once, by its content.

pub mod api;
pub mod chaos;
pub mod cli;
pub mod doctor;
mod error;
pub mod export;
pub mod facts;
mod help;
pub mod libtorch;
mod names;
mod pages;
pub mod retention;
mod schema;
pub mod tasks;
pub mod torchrun;

pub use error::{Error, Usage};
