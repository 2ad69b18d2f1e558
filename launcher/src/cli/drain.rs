//! `enn drain`.

use super::target_run::TargetRun;
use crate::{Error, facts::Facts};
use enn_common::{exit::ExitCode, wire::command::Request};

/// Make a run leave a node: its workers finish the step and end
///
/// A run of one node writes a checkpoint and ends, with code 143, as after SIGTERM; `enn train --resume` goes on with it, here or
/// elsewhere. One of --nnodes MIN:MAX goes on with the other nodes; where the node led, another one leads.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    target: TargetRun,
    /// Node to leave [default: the only one]
    #[arg(long, value_name = "HOST", help_heading = "Cluster")]
    node: Option<String>,
}

pub(super) fn run(args: &Args, facts: &Facts) -> Result<ExitCode, Error> {
    args.target.send(&Request::Drain { node: args.node.clone() }, facts)
}
