//! `enn kernels`.

use super::{flags::RunArgs, output};
use crate::{Error, facts::Facts};
use enn_ui::runs::Need;

/// Show which kernels a run's workers used, what they passed over and why, and what is in quarantine
///
/// Works on a run that is under way and on one that is over. Calls are those of rank 0, as of its last finished epoch.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    which: RunArgs,
    /// Print JSON
    #[arg(long, help_heading = "Output")]
    json: bool,
}

pub(super) fn run(args: &Args, facts: &Facts) -> Result<(), Error> {
    let run = args.which.find(Need::Any, facts)?;
    let book = enn_ui::kernels::read(&run)?;
    output::print(args.json, &book, || enn_ui::kernels::text(&book))
}
