//! `enn doctor`.

use super::output;
use crate::{
    Error,
    doctor::{self, DoctorInputs},
    facts::Facts,
};
use enn_common::exit::ExitCode;

/// Examine this machine: what is there, what is missing, and how to fix it
///
/// Ends with code 4 when something needed is missing.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Print JSON
    #[arg(long, help_heading = "Output")]
    json: bool,
}

pub(super) fn run(args: &Args, facts: &Facts) -> Result<ExitCode, Error> {
    let report = doctor::examine(&DoctorInputs::from(facts));
    output::print(args.json, &report.json(), || report.to_string())?;
    Ok(report.exit_code())
}
