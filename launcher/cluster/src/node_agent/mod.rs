//! The node agent: the only owner of the processes of a node.
//!
//! `state` decides: a pure machine that obeys the leader and has few rules of its own. `worker_records`, `kept_snapshots` and
//! `page_watch` are its parts.

pub mod effect;
pub mod input;
mod kept_snapshots;
mod page_watch;
mod report;
pub mod settings;
pub mod state;
#[cfg(test)]
mod tests;
mod worker_records;
