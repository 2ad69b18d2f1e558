//! The group: workers of one node that run any program, started, watched, restarted and ended as torchrun's contract says.
//!
//! ```text
//! spec ─► run ─► join ─► Round ─► start workers ─► signal · end of a worker · news · deadline ─► stop ─► join … ─► RunEnd
//! ```
//! `dispatcher` is the one owner loop and waits on everything at once (`wait`); `contract` is the environment of a worker
//! (pure); `worker` one process with its output and its failure; `error_file` what torch's `@record` leaves.
//!
//! **Invariant:** the group decides nothing about rounds: the rendezvous does, and the group obeys. Nothing outlives it, unless
//! a run that ended well is asked to leave it.

mod contract;
mod dispatcher;
mod error;
mod error_file;
mod readers;
mod spec;
mod wait;
mod watchdog;
mod worker;

pub use dispatcher::{GroupOutcome, run};
pub use error::GroupError;
pub use spec::{Command, GroupSpec};
