//! One process in a group of its own: started so that it dies with the launcher, watched by pidfd, signalled as a group.
//!
//! The floor under `agent` (ENN's own workers) and `group` (any program). It knows no rank, no round and no run.

mod child;
mod sweep;
mod unix;

pub(crate) use child::{Exit, Process, StartError};
pub(crate) use sweep::{Mark, sweep};
pub(crate) use unix::{Binding, Guard, STOP_SIGNALS, Signals};
