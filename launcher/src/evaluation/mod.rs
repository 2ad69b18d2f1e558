//! How good forecasts are: errors by cell, group and horizon beside the baselines', how honest intervals are, and which inputs
//! matter.
//!
//! **Invariant:** everything is about rows with targets that are there, by the weights of rows and cells; nothing is fitted to the rows that are judged.
//! Where there are rows that the run never saw, all but [`Parts::seen`] is about these alone.

mod intervals;
mod parts;
mod seen;
mod shuffle;

pub use crate::baselines::classes;
pub use intervals::{Held, Quantiles};
pub use parts::{Field, Judged, Parts, evaluate, untold};
pub use seen::{Seen, seen};
pub use shuffle::{Shuffled, Turns, inputs, shuffled};
