//! One process in a group of its own: started so that it dies with the launcher, watched by pidfd, signalled as a group.
//!
//! The floor under `agent` (ENN's own workers) and `group` (any program). It knows no rank, no round and no run.

mod unix;

pub(crate) use unix::{Guard, STOP_SIGNALS, Signals, bind_to_parent, has_ended, pidfd, signal_group};

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// With a code.
    Code(i32),
    /// By a signal.
    Signal(i32),
}
