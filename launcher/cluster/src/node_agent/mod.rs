//! The node agent: the only owner of the processes of a node.
//!
//! `state` decides: a pure machine that obeys the leader and has few rules of its own. `worker_records`, `kept_snapshots`,
//! `page_watch` and `device_failures` are its parts. Where the workers are any programs, `program_inputs` and `program_group` decide, and `programs` owns the
//! processes.

pub(crate) mod background;
mod broker_reader;
mod device_failures;
pub mod effect;
pub(crate) mod environment;
pub(crate) mod error;
mod evidence;
pub mod input;
mod kept_snapshots;
mod page_watch;
mod process;
mod program_group;
mod program_inputs;
mod program_ranks;
pub(crate) mod programs;
mod report;
pub mod settings;
pub(crate) mod shell;
mod snapshots;
pub mod state;
#[cfg(test)]
mod tests;
mod unix;
mod view;
mod worker_records;
pub(crate) mod worker_shell;

pub use error::AgentError;
