//! Quality of forecasts: errors by cell, group and horizon beside the baselines', calibration of intervals, and importance of inputs.
//!
//! **Invariant:** only rows with targets count, by the weights of rows and cells; nothing is fitted to the rows that are scored.
//! Where there are rows that the run never saw, all but [`EvaluationParts::seen`] is about these rows alone.

mod intervals;
mod parts;
mod seen;
mod shuffle;

pub use crate::baselines::classes;
pub use intervals::{IntervalCoverage, Quantiles};
pub use parts::{EvaluationInput, EvaluationParts, ScoringContext, evaluate, without_forecast};
pub use seen::{Seen, seen};
pub use shuffle::{Shuffle, ShufflePlan, Shuffled, inputs};
