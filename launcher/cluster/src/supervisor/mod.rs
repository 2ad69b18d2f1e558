//! The supervisor of a run: a pure machine that decides everything about the workers of all nodes.

pub mod effect;
pub mod input;
pub mod settings;

pub use input::MembershipEnd;
