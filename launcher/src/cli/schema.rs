//! `enn schema`.

use super::output;
use crate::{Error, schema};

/// Print the JSON schema of configurations, with which editors complete and check them
///
/// Files of `enn new` name it in their first line, `#:schema`, which Taplo and "Even Better TOML" follow.
#[derive(Debug, clap::Args)]
pub(super) struct Args {}

pub(super) fn run(_args: &Args) -> Result<(), Error> {
    output::bytes(schema::text().as_bytes())
}
