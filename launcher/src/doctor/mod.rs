//! `enn doctor`: what this machine has, what is missing, and how to fix it.
//!
//! [`findings`] examines the machine (files, limits, two short processes), [`policy`] checks the findings and is pure, and
//! [`report`] prints the result as text or JSON, `summary` what follows from it. [`variables`] is the table of the environment variables that ENN reads.

pub mod findings;
pub mod policy;
pub mod report;
mod summary;
pub mod variables;

pub use findings::{DoctorInputs, ExportSupport, Findings};
pub use report::{Check, CheckState, Report};

/// Examines the machine and checks what was found. Takes some seconds: the worker is started once to load libtorch, and
/// a Python to import PyTorch.
pub fn examine(inputs: &DoctorInputs) -> Examination {
    let findings = findings::collect(inputs);
    let report = policy::check(&findings);
    Examination { summary: summary::text(&findings, &report), report }
}

/// The report and the summary that [`examine`] makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Examination {
    pub report: Report,
    /// One screen that says what works and what does not.
    pub summary: String,
}
