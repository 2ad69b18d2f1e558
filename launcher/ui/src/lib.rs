//! Seeing a run: the journal of events, the progress display, plain lines, metrics and report.html.
//!
//! Everything here is fed by [`enn_common::event::Event`] and nothing else, so what is on the screen, in `enn metrics`
//! and in the report is what events.jsonl says.
//!
//! **Invariant:** this module never controls a worker or changes the configuration, and never fails a run: output that
//! cannot be shown is dropped, and a failure to write is reported once. Time comes with the events or as an argument; only
//! `top`, which is a program of its own, reads a clock, and only the servers have sockets.

pub mod classes;
pub mod compare;
pub mod configuration;
pub mod cv;
pub mod error;
pub mod evaluation;
pub mod event_channel;
pub mod failure;
pub mod follow;
pub mod format;
pub mod http_server;
pub mod journal;
pub mod kernels;
pub mod lines;
pub mod message;
pub mod metrics;
pub mod metrics_server;
pub mod mlflow;
pub mod model;
mod next_steps;
pub mod openmetrics;
pub mod plain;
pub mod program;
mod progress;
pub mod report;
pub mod roofline;
pub mod run_status;
pub mod runs;
mod sink;
pub mod status;
pub mod tensorboard;
pub mod terminal;
pub mod top;
pub mod trace;

pub use error::{JournalError, KernelsError, MetricsError, TopError};
pub use metrics_server::MetricsServer;
pub use model::RunView;
pub use next_steps::shell_word;
pub use sink::{Mode, Sink};
