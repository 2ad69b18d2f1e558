//! `enn doctor`: what this machine has, what is missing, and how to fix it.
//!
//! [`findings`] examines the machine (files, limits, two short processes), [`policy`] checks the findings and is pure, and
//! [`report`] prints the result as text or JSON. [`variables`] is the table of the environment variables that ENN reads.

pub mod findings;
pub mod policy;
pub mod report;
pub mod variables;

pub use findings::{DoctorInputs, Findings};
pub use report::{Check, CheckState, Report};

/// Examines the machine and checks what was found. Takes some seconds: the worker is started once to load libtorch, and
/// a Python to import PyTorch.
pub fn examine(inputs: &DoctorInputs) -> Report {
    policy::check(&findings::collect(inputs))
}
