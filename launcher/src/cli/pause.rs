//! `enn pause`.

use super::target_run::TargetRun;
use crate::{Error, facts::Facts};
use enn_common::{exit::ExitCode, wire::command::Request};

/// Pause a training under way: its workers leave the round after a step and wait
///
/// They keep their memory, their devices and what they have loaded, but compute nothing. `enn continue` goes on at once.
/// Nothing is saved: to free the machine, use `enn stop` and `enn train --resume`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    target: TargetRun,
}

pub(super) fn run(args: &Args, facts: &Facts) -> Result<ExitCode, Error> {
    args.target.send(&Request::Pause {}, facts)
}
