//! `enn drain`.

use super::flags::Asked;
use crate::{Error, facts::Facts};
use enn_common::{exit::ExitCode, wire::command::Request};

/// Make a run leave a node: its workers finish the step, write a checkpoint and end, as after SIGTERM
///
/// A run of one node ends, with code 143; `enn train --resume` goes on with it, here or elsewhere.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    asked: Asked,
    /// Node to leave [default: the only one]
    #[arg(long, value_name = "HOST", help_heading = "Cluster")]
    node: Option<String>,
}

pub(super) fn run(args: &Args, facts: &Facts) -> Result<ExitCode, Error> {
    args.asked.ask(&Request::Drain { node: args.node.clone() }, facts)
}
