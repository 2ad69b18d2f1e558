//! Output of the workers: files, console, filters, the last lines for a failure's report.
//!
//! `pump` is one entry point: it creates the streams of a worker and owns the thread (`reader`) that reads the other ends.
//! `reading` is the other one: it finds the log files and follows them, and `printer` formats them. `lines`, `prefix`,
//! `filter`, `screen`, `printer` and `plan` are pure; `console`, `files`, `layout`, `find` and `growing` touch the system.
//! **Invariant:** nothing that happens to the console or to the disk ends or blocks a worker for good, and no line of one
//! worker is cut by a line of another.

mod console;
mod error;
mod files;
mod filter;
mod find;
mod growing;
mod last_output;
mod layout;
mod lines;
mod plan;
mod prefix;
mod printer;
mod pump;
mod pump_link;
mod reader;
mod reading;
mod screen;
mod selection;
mod stream;
mod stream_name;
mod tail;
mod tail_writer;
mod worker_identity;

pub use error::{LogError, LogReadError};
pub use find::{LogFile, LogLocation, are_in};
pub use plan::{LogPlan, StdByRank, StdStreams};
pub use printer::{LogFormat, Printer};
pub use pump::{Pump, WorkerStreams};
pub use pump_link::Backlog;
pub use reading::LogReader;
pub use reading::{has_ended, last_written};
pub use selection::LogSelection;
pub use tail::Tail;
pub use worker_identity::WorkerIdentity;

#[cfg(test)]
mod tests;
