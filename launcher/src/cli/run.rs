//! `enn run`, and `enn-torchrun`.

use super::{
    completions::{self, AnyShell},
    flags::Scrape,
    line::{self, Words},
};
use crate::{
    Error,
    api::{self, RunOptions},
    facts::Facts,
    torchrun::{self, Dialect, EnnFlags, Flags, RunError, TorchPlugIn},
};
use enn_common::exit::ExitCode;
use enn_ui::{Mode, message};
use std::{
    ffi::{OsStr, OsString},
    os::unix::process::CommandExt,
    path::Path,
};

/// Run a program on many workers, as torchrun does, with torchrun's flags
///
/// Every worker gets torchrun's variables (RANK, WORLD_SIZE, MASTER_ADDR, …). The first failure on any node stops all workers, is shown
/// with its cause, and restarts them while --max-restarts allows. Each flag of torchrun's is also read from PET_<NAME>, in both spellings
/// with - and _. Arguments after PROGRAM belong to the program. A flag that this version does not know is ignored with a note.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    flags: Flags,
    #[command(flatten)]
    own: EnnFlags,
    #[command(flatten)]
    scrape: Scrape,
    #[command(flatten)]
    show: Verbosity,
    /// Print completions for a shell, and nothing else
    #[arg(
        long,
        alias = "print_completion",
        value_enum,
        value_name = "SHELL",
        exclusive = true,
        help_heading = "Output"
    )]
    print_completion: Option<AnyShell>,
    /// The words of the whole command line.
    #[arg(skip)]
    words: Words,
}

impl Args {
    /// Adds the typed words, and notes about ignored flags.
    pub(super) fn typed(mut self, words: Words, notes: Vec<String>) -> Self {
        self.words = words;
        self.flags.notes = notes;
        self
    }
}

/// How the run is shown; the console belongs to the workers.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Output")]
struct Verbosity {
    /// Report every event as one line on standard error
    #[arg(long, short)]
    verbose: bool,
    /// Equivalent to --verbose
    #[arg(long)]
    lines: bool,
    /// Report only failures; the default
    #[arg(long, short, conflicts_with_all = ["verbose", "lines"])]
    quiet: bool,
    /// Print every event as one JSON object per line on standard output
    #[arg(long, conflicts_with_all = ["verbose", "lines", "quiet"])]
    json: bool,
}

impl Verbosity {
    fn mode(&self) -> Mode {
        match (self.json, self.verbose || self.lines) {
            (true, _) => Mode::Json,
            (_, true) => Mode::Lines,
            _ => Mode::Quiet,
        }
    }
}

/// `enn-torchrun`: torchrun's own command line.
#[derive(Debug, clap::Parser)]
#[command(
    name = "enn-torchrun",
    version,
    about = "torchrun's command line, run by enn",
    infer_long_args = true,
    args_override_self = true,
    max_term_width = 110
)]
pub(super) struct Torchrun {
    #[command(flatten)]
    pub(super) args: Args,
}

/// Runs the program; returns the exit status. torchrun ends with 1 where `enn run` distinguishes causes.
pub(super) fn run(args: Args, dialect: Dialect, facts: &Facts) -> Result<u8, Error> {
    let Args { mut flags, own, scrape, show, print_completion, words } = args;
    if let Some(shell) = print_completion {
        let name = words.typed.first().and_then(|word| Path::new(word).file_name()).unwrap_or_default();
        completions::print(shell, dialect, &name.to_string_lossy())?;
        return Ok(ExitCode::Success as u8);
    }
    flags.command = without_separator(flags.command, &facts.argv);
    let options =
        RunOptions { runs_dir: own.runs_dir.clone(), mode: show.mode(), dialect, metrics_addr: scrape.metrics_addr };
    let flags = flags.with_variables(&facts.pet).map_err(Box::new)?;
    let allocation = api::allocation(&flags, dialect, facts)?;
    if let Some(plug_in) = torchrun::requested_plug_in(&flags) {
        if allocation.is_some() {
            return Err(Box::new(plug_in.in_allocation()).into());
        }
        return Err(Box::new(hand_over(&plug_in, &flags, &words, dialect, facts)).into());
    }
    if let Some(allocation) = allocation {
        return api::run_allocated(flags, &own, facts, &options, &allocation);
    }
    let launch = torchrun::resolve(flags, &own, dialect, facts).map_err(Box::new)?;
    api::run(launch, facts, &options)
}

/// Replaces this process by torch's own torchrun. Returns only on failure.
fn hand_over(plug_in: &TorchPlugIn, flags: &Flags, words: &Words, dialect: Dialect, facts: &Facts) -> RunError {
    let own = line::beyond_torchrun(&words.known, dialect);
    let first = match dialect {
        Dialect::Torchrun => 1,
        Dialect::Enn => 2,
    };
    let script = flags.command.first().map_or(OsStr::new(""), OsString::as_os_str);
    match plug_in.command(&own, words.typed.get(first..).unwrap_or_default(), script, facts) {
        Ok(mut command) => {
            message::print(&plug_in.note(&command));
            let source = command.exec();
            RunError::Execute { program: Path::new(command.get_program()).display().to_string(), source }
        }
        Err(error) => error,
    }
}

/// Removes a `--` directly after the program, like torchrun's parser, unless a `--` before the program has ended torchrun's flags already.
pub(super) fn without_separator(mut command: Vec<OsString>, argv: &[String]) -> Vec<OsString> {
    let before = argv.len().checked_sub(command.len() + 1).and_then(|index| argv.get(index));
    if command.get(1).is_some_and(|word| word == "--") && before.is_none_or(|word| word != "--") {
        command.remove(1);
    }
    command
}
