//! `enn doctor`.

use super::output;
use crate::{
    Error, api,
    doctor::{self, DoctorInputs},
    facts::Facts,
};
use enn_common::exit::ExitCode;

/// Say what works on this machine, what is missing, and how to fix it
///
/// Ends with code 4 when something needed is missing.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Print everything that was found, and the environment variables with their values
    #[arg(long, short, visible_short_alias = 'v', conflicts_with = "json", help_heading = "Output")]
    all: bool,
    /// Print JSON
    #[arg(long, help_heading = "Output")]
    json: bool,
}

pub(super) fn run(args: &Args, facts: &Facts) -> Result<ExitCode, Error> {
    let exports = api::export_support(&facts.cache_dir);
    let found = doctor::examine(&DoctorInputs { exports, ..DoctorInputs::from(facts) });
    output::print(args.json, &found.report.json(), || if args.all { found.report.to_string() } else { found.summary })?;
    Ok(found.report.exit_code())
}
