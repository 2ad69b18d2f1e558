//! The services of the leader of a run besides deciding: checkpoints, journal, control server, run directory.
//!
//! `shell` carries out the effects of the supervisor and makes its inputs.
//! **Invariant:** what changes the run directory is fenced (`fence`): a leader that has a successor changes nothing.

mod ask;
mod checkpoint_store;
mod checkpoints;
mod commit_thread;
mod control;
mod fence;
mod journal;
mod kernel_file;
mod shell;

pub use ask::{AskError, Asker, ask};
pub use checkpoint_store::{CheckpointStore, Known, Then, retention_rule};
pub use checkpoints::{CheckpointFailure, Checkpoints};
pub use fence::Fence;
pub(crate) use journal::{Journal, JournalMessage};
pub(crate) use kernel_file::read_kernels;
pub(crate) use shell::{LeaderParts, LeaderShell, LeaderSource};
