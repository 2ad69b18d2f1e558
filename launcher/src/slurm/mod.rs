//! Slurm: what it gave us, where its nodes meet, the script we hand it, and asking it to run us again.
//!
//! Everything that decides is pure and reads the variables it is handed; commands of Slurm run behind one trait.

mod allocation;
mod binding;
mod error;
pub mod hostlist;

pub use allocation::Allocation;
pub use error::SlurmError;
