//! `enn man`.

use super::output;
use crate::Error;

/// Names of the subcommands, of which each has a page; a test compares them with `Command`.
pub(super) const NAMES: [&str; 38] = [
    "run",
    "warm",
    "new",
    "train",
    "predict",
    "serve",
    "evaluate",
    "export",
    "cv",
    "stage",
    "init",
    "metrics",
    "ls",
    "compare",
    "mlflow",
    "rm",
    "gc",
    "profile",
    "status",
    "top",
    "resize",
    "pause",
    "continue",
    "drain",
    "stop",
    "logs",
    "kernels",
    "chaos",
    "ckpt",
    "data",
    "model",
    "slurm",
    "doctor",
    "help",
    "completions",
    "man",
    "schema",
    "runtime",
];

/// Print the manual page of enn or of one subcommand (roff; read it with `enn man | man -l -`)
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Subcommand; without it the page of enn
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(NAMES))]
    subcommand: Option<String>,
}

/// Prints the page of `command` or of one of its subcommands.
pub(super) fn run(args: &Args, command: &clap::Command) -> Result<(), Error> {
    let chosen = args.subcommand.as_deref().and_then(|name| command.find_subcommand(name).cloned());
    let page = match (chosen, &args.subcommand) {
        (Some(chosen), Some(name)) => chosen.name(format!("enn-{name}")),
        _ => command.clone(),
    };
    let mut text = Vec::new();
    clap_mangen::Man::new(page).render(&mut text).map_err(Error::Output)?;
    output::bytes(&text)
}
