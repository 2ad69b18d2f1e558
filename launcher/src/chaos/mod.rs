//! Fault injection: `enn chaos` kills, stops, slows and starves workers of a run that is under way, at random times that
//! a seed determines.
//!
//! **Invariant:** a process is touched only if it is a worker of this run at that moment: its journal names it, it belongs
//! to this user, it descends from the run's launcher, and its start time is the one seen before. Every fault that can be
//! undone is undone at the end.

mod active_faults;
mod error;
mod fault_log;
mod live_workers;
mod policy;
mod rate;
mod run;
mod target;
mod unix;

pub use error::ChaosError;
pub use policy::{Fault, FaultKind, Rate, Schedule};
pub use rate::{duration, rate};
pub use run::{ChaosEnd, ChaosOptions, run};
