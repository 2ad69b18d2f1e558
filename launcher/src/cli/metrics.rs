//! `enn metrics`.

use super::{flags::Runs, output};
use crate::{Error, facts::Facts};
use enn_ui::runs::Need;

/// Print the errors of a run's best model beside the baselines
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Run: its directory, its name, the beginning of its name, its address, or "latest"
    #[arg(value_name = "RUN", help_heading = "Job")]
    run: String,
    #[command(flatten)]
    runs: Runs,
    /// Print JSON
    #[arg(long, help_heading = "Output")]
    json: bool,
}

pub(super) fn run(args: &Args, facts: &Facts) -> Result<(), Error> {
    let run = args.runs.find(&args.run, Need::Errors, facts)?;
    if args.json {
        output::print(true, &enn_ui::metrics::read(&run)?, String::new)?;
    } else {
        output::text_line(&enn_ui::metrics::table(&enn_ui::RunView::read(&run)?))?;
    }
    Ok(())
}
