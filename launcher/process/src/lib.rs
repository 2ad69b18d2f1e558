//! One process in a group of its own: started so that it dies with the launcher, watched by pidfd, signalled as a group.
//!
//! The package also holds what every owner of processes needs: `logs` of workers, their `stacks`, `numa` binding, the folder of a
//! run (`run_dir`), the health of GPUs (`devices`), names with placeholders (`template`), the fork server that starts Python workers
//! (`preload`), and question and answer over the pipes of a worker (`piped`).

mod cgroup;
mod child;
pub mod devices;
pub mod logs;
pub mod numa;
mod output;
mod patient;
pub mod piped;
mod poll;
pub mod preload;
mod proc_stat;
pub mod run_dir;
pub mod signal;
pub mod stacks;
mod sweep;
mod sys;
pub mod template;
mod unix;
mod worker_program;

pub use cgroup::Cgroup;

pub use child::{Exit, Inlet, Outlet, Outlets, Parent, Process, StartError};
pub use output::{CommandOutput, OutputError, output_within, run_within};
pub use patient::{GiveUp, PatientWriter};
pub use poll::{next_signal, wait_ready};
pub use proc_stat::ProcStat;
pub use sweep::{MARK_VARIABLE, Mark, end_children, reap_orphans, signal_one, sweep};
pub use sys::{program_file, variables_of};
pub use unix::{
    Binding, Guard, STOP_SIGNALS, Signals, adopt_orphans, copy_window_size, given_descriptor, ignored_signals,
    inherited_descriptors, outlive, pidfd, signal_mask, terminal_pair, unread_bytes, window_columns,
};
pub use worker_program::WorkerSpec;
