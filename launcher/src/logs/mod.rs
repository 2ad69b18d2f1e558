//! Output of the workers: files, console, filters, the last lines for a failure's report.
//!
//! `pump` is the door: it hands out the streams of a worker and owns the thread (`reader`) that reads the other ends.
//! `reading` is the other door: it finds the files again and follows them, `printer` makes them readable. `lines`, `prefix`,
//! `filter`, `screen`, `printer` and `plan` are pure; `console`, `files`, `layout`, `find` and `growing` touch the system.
//! **Invariant:** nothing that happens to the console or to the disk ends or blocks a worker for good, and no line of one
//! worker is cut by a line of another.

mod console;
mod error;
mod files;
mod filter;
mod find;
mod growing;
mod layout;
mod lines;
mod plan;
mod prefix;
mod printer;
mod pump;
mod reader;
mod reading;
mod screen;
mod stream;
mod tail;

pub use error::{LogError, LogReadError, StdError};
pub use find::{LogFile, Place, Wanted, are_in};
pub use plan::{LogPlan, Std, StdByRank};
pub use printer::{Form, Printer};
pub use pump::{Backlog, Pump, Streams, Who};
pub use reading::Reading;
pub(crate) use reading::{has_ended, last_written};
pub use tail::Tail;

#[cfg(test)]
mod tests;
