//! One process in a group of its own: started so that it dies with the launcher, watched by pidfd, signalled as a group.
//!
//! The layer below `agent` (ENN's own workers) and `group` (any program). It knows no rank, no round and no run.

mod cgroup;
mod child;
mod output;
mod patient;
mod poll;
mod sweep;
mod sys;
mod unix;

pub(crate) use cgroup::Cgroup;

pub(crate) use child::{Exit, Inlet, Outlet, Outlets, Parent, Process, StartError};
pub(crate) use output::{OutputError, output_within};
pub(crate) use patient::{GiveUp, PatientWriter};
pub(crate) use poll::{next_signal, wait_ready};
pub(crate) use sweep::{MARK_VARIABLE, Mark, end_children, reap_orphans, signal_one, sweep};
pub(crate) use sys::{program_file, variables_of};
pub(crate) use unix::{
    Binding, Guard, STOP_SIGNALS, Signals, adopt_orphans, copy_window_size, ignored_signals, inherited_descriptors,
    outlive, pidfd, signal_mask, terminal_pair, unread_bytes, window_columns,
};
