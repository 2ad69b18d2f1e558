//! Strange data, from the command line on: every run ends with a sensible answer, or with one sentence and the exit code of its kind.
//!
//! Sensible is: forecasts are finite and within reach of the targets, and the mean absolute error is at most `SHARE` of the best
//! baseline's. Needs `enn` and `enn-worker`, which `make build` makes, and libtorch on the library path, as `make test` sets it.

mod hostile;
mod independence;
mod inputs;
mod many;
mod place;
mod refusals;
mod screens;
mod targets;
mod terminal;
mod weights;

pub(crate) use place::{Place, Table, data};
