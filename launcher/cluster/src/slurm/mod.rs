//! Slurm: the allocation, the rendezvous of its nodes, the job script, and requeueing.
//!
//! All decisions are pure and read the variables that are passed in; commands of Slurm run behind one trait.

mod address;
mod allocation;
mod binding;
mod command;
mod error;
mod follow;
pub mod hostlist;
mod records;
mod rendezvous;
mod requeue;
mod script;
mod states;
mod submit;

pub use address::address;
pub use allocation::Allocation;
pub use command::{CommandOutput, Commands, SystemCommands};
pub use error::SlurmError;
pub use follow::{NodeLeader, follow};
pub use rendezvous::{AllocationRendezvous, TaskRole, WorkersFrom, rendezvous, srun, task_role};
pub use requeue::requeue;
pub use script::{JobOptions, SIGNAL_BEFORE_S, script};
pub use states::JobState;
pub use submit::{JobInfo, job, submit};
