//! `enn init`.

use super::{
    flags::{Changes, Runs, Show},
    output,
};
use crate::{Error, api, facts::Facts};
use enn_process::run_dir;
use std::path::PathBuf;

/// Make a model with seeded initial weights, as a run directory with a checkpoint of step 0
///
/// The data are staged first: the model's shape and scaling come from them.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Configuration (TOML)
    #[arg(value_name = "CONFIG", help_heading = "Job")]
    config: PathBuf,
    #[command(flatten)]
    runs: Runs,
    #[command(flatten)]
    changes: Changes,
    #[command(flatten)]
    show: Show,
}

pub(super) fn run(args: &Args, facts: &Facts) -> Result<(), Error> {
    let config = api::load_config(&args.config, &args.changes.overrides(), facts)?;
    let runs = args.runs.dir(facts);
    run_dir::local(&runs)?;
    let staged = api::stage(&config, &runs.join(api::STAGED_DIR), args.show.mode())?;
    let run = api::new_model(&config, &staged.meta, facts, &runs)?;
    output::text_line(&run.display().to_string())
}
