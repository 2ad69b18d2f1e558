//! How good forecasts are: errors by cell, group and horizon beside the baselines', how honest intervals are, and which inputs
//! matter.
//!
//! **Invariant:** everything is about rows with targets that are there, by the weights of rows and cells; nothing is fitted to the rows that are judged.

mod intervals;
mod parts;
mod shuffle;

pub use intervals::{Quantiles, intervals, levels};
pub use parts::{Judged, Parts, evaluate, untold};
pub use shuffle::{Shuffled, inputs, shuffled};
