//! Slurm: what it gave us, where its nodes meet, the script we hand it, and asking it to run us again.
//!
//! Everything that decides is pure and reads the variables it is handed; commands of Slurm run behind one trait.

mod address;
mod allocation;
mod binding;
mod command;
mod error;
mod follow;
pub mod hostlist;
mod meeting;
mod records;
mod requeue;
mod script;
mod states;
mod submit;

pub use address::address;
pub use allocation::Allocation;
pub use command::{Commands, OnPath, Said};
pub use error::SlurmError;
pub use follow::{Leader, follow};
pub use meeting::{Meeting, Part, WorkersFrom, part, rendezvous, srun};
pub use requeue::requeue;
pub use script::{JobOptions, SIGNAL_BEFORE_S, script};
pub use states::State;
pub use submit::{Job, job, submit};
