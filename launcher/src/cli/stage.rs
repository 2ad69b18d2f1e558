//! `enn stage`.

use super::{
    flags::{Changes, Show},
    output,
};
use crate::{Error, api, facts::Facts};
use std::path::PathBuf;

/// Stage data without training: read, check, and write arrays that workers map
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Configuration (TOML)
    #[arg(value_name = "CONFIG", help_heading = "Job")]
    config: PathBuf,
    /// Directory of staged directories
    #[arg(long, value_name = "DIR", default_value = "staged", help_heading = "Job")]
    out: PathBuf,
    #[command(flatten)]
    changes: Changes,
    #[command(flatten)]
    show: Show,
}

pub(super) fn run(args: &Args, facts: &Facts) -> Result<(), Error> {
    let config = api::load_config(&args.config, &args.changes.overrides(), facts)?;
    let mode = args.show.mode();
    let staged = api::stage(&config, &facts.cwd.join(&args.out), mode)?;
    if mode != enn_ui::Mode::Json {
        output::text_line(&staged.dir.display().to_string())?;
    }
    Ok(())
}
