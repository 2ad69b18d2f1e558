//! The launcher: the binary `enn` and its Rust API.
//!
//! `cli → api → {stage, agent, gather, convert, cv, evaluation, serve, tasks}` for ENN's own workers, `cli → api → torchrun → group → {rendezvous, logs,
//! stacks, preload, process}` for any program (LAUNCH.md); `slurm` says where an allocation's nodes meet. `ui` and `baselines` see
//! only `common`'s types; `facts` is read once and passed on, and `libtorch` is searched for once, by its content. `remote` moves
//! checkpoints to and from object stores, and finds the runs that are kept in one.

pub mod agent;
pub mod api;
pub mod baselines;
pub mod chaos;
pub mod cli;
pub mod convert;
pub mod cv;
pub mod doctor;
mod error;
pub mod evaluation;
pub mod export;
pub mod facts;
pub mod gather;
pub mod group;
pub mod libtorch;
pub mod logs;
pub mod numa;
pub mod preload;
mod process;
pub mod remote;
pub mod rendezvous;
pub mod retention;
pub mod run_dir;
pub mod runs;
pub mod serve;
pub mod slurm;
pub mod stacks;
pub mod stage;
pub mod tasks;
mod template;
pub mod torchrun;
pub mod ui;

pub use error::{Error, Usage};
