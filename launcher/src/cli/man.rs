//! `enn man`.

use super::output;
use crate::Error;

/// Print the manual page of enn or of one subcommand (roff; read it with `enn man | man -l -`)
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Subcommand; without it the page of enn
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(super::NAMES))]
    subcommand: Option<String>,
}

pub(super) fn run(args: &Args) -> Result<(), Error> {
    let command = super::command();
    let chosen = args.subcommand.as_deref().and_then(|name| command.find_subcommand(name).cloned());
    let page = match (chosen, &args.subcommand) {
        (Some(chosen), Some(name)) => chosen.name(format!("enn-{name}")),
        _ => command,
    };
    let mut text = Vec::new();
    clap_mangen::Man::new(page).render(&mut text).map_err(Error::Output)?;
    output::bytes(&text)
}
