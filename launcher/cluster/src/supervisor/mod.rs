//! The supervisor of a run: a pure machine that decides everything about the workers of all nodes.

pub mod checkpoint_ledger;
pub mod effect;
pub mod input;
mod machine;
pub mod settings;

pub use checkpoint_ledger::CompleteCheckpoint;
pub use input::MembershipEnd;
pub use machine::Supervisor;
#[cfg(test)]
pub(crate) use machine::WorkerView;
