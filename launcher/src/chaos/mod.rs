//! Faults on purpose: `enn chaos` kills, stops, slows and starves workers of a run that is under way, at random times that a
//! seed decides.
//!
//! **Invariant:** no process is touched that is not, at that moment, a worker of this run: told by its journal, of this user, a
//! descendant of its launcher, and the same process as before by its start time. What can be undone is undone at the end.

mod acts;
mod crew;
mod error;
mod policy;
mod rate;
mod record;
mod run;
mod target;
mod unix;

pub use error::ChaosError;
pub use policy::{Fault, Kind, Rate, Schedule};
pub use rate::{duration, rate};
pub use run::{Ended, Means, run};
