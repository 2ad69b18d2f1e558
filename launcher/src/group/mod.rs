//! The group: workers of one node that run any program, started, watched, restarted and ended as torchrun's contract says.

mod spec;
mod standin;

pub use spec::{Command, GroupSpec};
pub use standin::{GroupError, GroupOutcome, run};
