//! Output of the workers: files, console, filters, the last lines for a failure's report.

mod plan;

pub use plan::{LogPlan, Std, StdByRank};
