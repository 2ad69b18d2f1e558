//! `enn continue`.

use super::target_run::TargetRun;
use crate::{Error, facts::Facts};
use enn_common::{exit::ExitCode, wire::command::Request};

/// Go on with a training that was paused
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    target: TargetRun,
}

pub(super) fn run(args: &Args, facts: &Facts) -> Result<ExitCode, Error> {
    args.target.send(&Request::Continue {}, facts)
}
