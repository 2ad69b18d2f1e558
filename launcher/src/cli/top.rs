//! `enn top`.

use super::flags::RunArgs;
use crate::{Error, facts::Facts};
use enn_process::{STOP_SIGNALS, Signals, run_dir};
use enn_ui::runs::Need;
use enn_ui::{
    TopError,
    top::{self, TopOptions},
};

/// Watch a run on the whole screen: nodes, workers, load, throughput, reasons, logs
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    which: RunArgs,
}

pub(super) fn run(args: &Args, facts: &Facts) -> Result<(), Error> {
    let run = args.which.find(Need::Any, facts)?;
    let signals =
        Signals::install(&STOP_SIGNALS).map_err(|source| TopError::System { what: "handle signals", source })?;
    let options = TopOptions {
        run_dir: &run,
        held: &run_dir::lock_path(&run),
        living: &|| run_dir::is_living(&run),
        logs: run_dir::logs(&run),
        host: &facts.host,
        stop: signals.as_ref().map(Signals::fd),
    };
    top::run(&options)?;
    Ok(())
}
