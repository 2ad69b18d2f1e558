//! `enn completions`.

use super::output;
use crate::Error;
use clap_complete::Shell;
use enn_common::exit::ExitCode;

/// Print completions for a shell
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Shell
    #[arg(value_enum)]
    shell: Shell,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Error> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut super::command(), "enn", &mut text);
    output::bytes(&text)?;
    Ok(ExitCode::Success)
}
