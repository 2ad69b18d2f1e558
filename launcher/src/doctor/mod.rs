//! `enn doctor`: what this machine has, what is missing, and the command that mends it.
//!
//! [`findings`] looks (files, limits, two short processes), [`policy`] judges without looking, [`report`] says it as text or
//! JSON. The variables ENN reads are one table, [`variables`].

pub mod findings;
pub mod policy;
pub mod report;
pub mod variables;

pub use findings::{Findings, Surroundings};
pub use report::{Item, Report, State};

/// Looks at the machine and judges it. Takes some seconds: the worker is started once to load libtorch, and a Python to import PyTorch.
pub fn examine(surroundings: &Surroundings) -> Report {
    policy::judge(&findings::look(surroundings))
}
