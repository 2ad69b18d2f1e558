//! Programs that read torchrun's environment, as the processes of a node: started, watched, their output shown and their failures found.
//!
//! `shell` carries out what the node state decides about them; `environment` is what a worker is told (pure); `program_seat`
//! what a worker is started for; `program_worker` one process with its output and its failure; `error_file` what torch's `@record` leaves; `scripts` what programs may do that attach to
//! the broker, and `script_services` what they need for it; `watchdog` the timers that workers set for
//! themselves; `readers` the last wait for whoever reads their output.
//!
//! **Invariant:** nothing outlives the run on this node, unless one that ended well is asked to leave it.

mod environment;
mod error_file;
mod program_seat;
mod program_worker;
mod readers;
mod script_services;
mod scripts;
mod shell;
mod spec;
mod watchdog;

pub(crate) use readers::Requests;
pub(crate) use shell::ProgramShell;
pub use spec::{Command, GroupSpec, ReplaceSpec};
