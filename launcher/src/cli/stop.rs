//! `enn stop`.

use super::target_run::TargetRun;
use crate::{Error, facts::Facts};
use enn_common::{exit::ExitCode, wire::command::Request};

/// Stop a run: its workers finish the step, write a checkpoint and end, as after one Ctrl-C
///
/// The run ends with code 130; `enn train --resume` goes on with it.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    target: TargetRun,
}

pub(super) fn run(args: &Args, facts: &Facts) -> Result<ExitCode, Error> {
    args.target.send(&Request::Stop {}, facts)
}
