//! Seeing a run: the journal of events, the progress display, plain lines, metrics and report.html.
//!
//! Everything here is fed by [`enn_common::event::Event`] and nothing else, so what is on the screen, in `enn metrics`
//! and in the report is what events.jsonl says.
//!
//! **Invariant:** this module never touches a worker, a socket or the configuration's meaning; it never reads a clock
//! (time comes with the events) and never fails a run: what cannot be shown is dropped, what cannot be written is told once.

pub mod error;
pub mod failure;
pub mod figures;
pub mod journal;
pub mod lines;
pub mod metrics;
pub mod model;
mod progress;
pub mod report;
pub mod signal;
mod sink;
pub mod trace;

pub use error::JournalError;
pub use model::RunView;
pub use sink::{Mode, Sink};
