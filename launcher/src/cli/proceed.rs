//! `enn continue`.

use super::asked::Asked;
use crate::{Error, facts::Facts};
use enn_common::{exit::ExitCode, wire::command::Request};

/// Go on with a training that was paused
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    asked: Asked,
}

pub(super) fn run(args: &Args, facts: &Facts) -> Result<ExitCode, Error> {
    args.asked.ask(&Request::Continue {}, facts)
}
