//! The node agent: the only owner of the processes of a node.
//!
//! `state` decides: a pure machine that obeys the leader and has few rules of its own. `worker_records`, `kept_snapshots` and
//! `page_watch` are its parts.

pub(crate) mod background;
pub mod effect;
pub(crate) mod environment;
pub(crate) mod error;
mod evidence;
pub mod input;
mod kept_snapshots;
mod page_watch;
mod process;
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

pub use error::AgentError;
