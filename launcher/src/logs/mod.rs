//! Output of the workers: files, console, filters, the last lines for a failure's report.
//!
//! `pump` is the door: it hands out the streams of a worker and owns the thread (`reader`) that reads the other ends.
//! `lines`, `prefix`, `filter`, `screen` and `plan` are pure; `console`, `files` and `layout` touch the system.
//! **Invariant:** nothing that happens to the console or to the disk ends or blocks a worker for good, and no line of one
//! worker is cut by a line of another.

mod console;
mod error;
mod files;
mod filter;
mod layout;
mod lines;
mod plan;
mod prefix;
mod pump;
mod reader;
mod screen;
mod stream;
mod tail;

pub use error::{LogError, StdError};
pub use plan::{LogPlan, Std, StdByRank};
pub use pump::{Pump, Streams, Who};
pub use tail::Tail;

#[cfg(test)]
mod tests;
