//! `enn resize`.

use super::target_run::TargetRun;
use crate::{Error, facts::Facts};
use enn_common::{exit::ExitCode, wire::command::Request};

/// Change the number of workers of a training under way
///
/// More workers are started and warmed while the others train on; then all meet in a new round. With fewer, the round ends after
/// a step, and workers without a seat end. The result does not change: the global batch is the same for any number of workers.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    target: TargetRun,
    /// Workers from now on
    #[arg(value_name = "N")]
    workers: u32,
}

pub(super) fn run(args: &Args, facts: &Facts) -> Result<ExitCode, Error> {
    args.target.send(&Request::Resize { workers: args.workers }, facts)
}
