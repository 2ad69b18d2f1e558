//! The agent: starts the workers of a run, keeps them alive, commits their checkpoints, and ends them all.
//!
//! ```text
//! spec ─► run ─► per round: prepare checkpoints ─► broker expects ─► spawn ─► wait for events ─► verdict ─► policy
//!                                                                    ▲  signal · exit · word · commit · deadline
//! ```
//! One owner loop (`dispatcher`) waits on everything at once (`wait`), keeps what it knows of the round (`round`), and asks
//! pure functions what to do (`policy`, `cause`). `child` is one process, `committer` one thread for slow disks, `unix` all that
//! is unsafe.
//!
//! **Invariant:** nothing is polled, nothing outlives the agent, and the agent decides nothing about data or models.

mod cause;
mod child;
mod committer;
mod dispatcher;
mod durable;
mod env;
mod error;
mod kernels;
mod policy;
mod round;
mod spec;
mod unix;
mod wait;

pub use committer::{Checkpoints, Committed};
pub use dispatcher::run;
pub use durable::Durable;
pub use error::AgentError;
pub use policy::{Decision, History, Limits, Reason, after_failure};
pub use spec::{AgentSpec, Chunk, Ended, Job, Outcome, Signal, WorkerSpec};
