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
    torchrun::{self, Elsewhere, Flags, Manner, Own, RunError},
    ui::{Mode, message},
};
use enn_common::exit::ExitCode;
use std::{
    ffi::{OsStr, OsString},
    os::unix::process::CommandExt,
    path::Path,
};

/// Run a program on many workers, as torchrun does, with torchrun's flags
///
/// Every worker gets torchrun's variables (RANK, WORLD_SIZE, MASTER_ADDR, …). The first failure on any node stops all workers, is
/// shown with its cause, and restarts them while --max-restarts allows. Each flag of torchrun's is also read from PET_<NAME>, in
/// both spellings with - and _. What follows PROGRAM is the program's own. A flag that this version does not know has no effect, which
/// is said.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    flags: Flags,
    #[command(flatten)]
    own: Own,
    #[command(flatten)]
    scrape: Scrape,
    #[command(flatten)]
    show: Show,
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
    /// The whole command line.
    #[arg(skip)]
    words: Words,
}

impl Args {
    /// With the words that were typed, and what is to be said of those that were set aside.
    pub(super) fn typed(mut self, words: Words, notes: Vec<String>) -> Self {
        self.words = words;
        self.flags.notes = notes;
        self
    }
}

/// How the run is shown; the console belongs to the workers.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Output")]
struct Show {
    /// Tell what happens, one line per event, on standard error
    #[arg(long, short)]
    verbose: bool,
    /// The same as --verbose
    #[arg(long)]
    lines: bool,
    /// Tell only what went wrong; the default
    #[arg(long, short, conflicts_with_all = ["verbose", "lines"])]
    quiet: bool,
    /// Print every event as one JSON object per line on standard output
    #[arg(long, conflicts_with_all = ["verbose", "lines", "quiet"])]
    json: bool,
}

impl Show {
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

/// The exit status. torchrun ends with 1 where `enn run` says more.
pub(super) fn run(args: Args, manner: Manner, facts: &Facts) -> Result<u8, Error> {
    let Args { mut flags, own, scrape, show, print_completion, words } = args;
    if let Some(shell) = print_completion {
        let name = words.typed.first().and_then(|word| Path::new(word).file_name()).unwrap_or_default();
        completions::print(shell, manner, &name.to_string_lossy())?;
        return Ok(ExitCode::Success as u8);
    }
    flags.command = without_separator(flags.command, &facts.argv);
    let options =
        RunOptions { runs_dir: own.runs_dir.clone(), mode: show.mode(), manner, metrics_addr: scrape.address() };
    let flags = flags.with_variables(&facts.pet).map_err(Box::new)?;
    let allocation = api::allocation(&flags, manner, facts)?;
    if let Some(elsewhere) = torchrun::elsewhere(&flags) {
        if allocation.is_some() {
            return Err(Box::new(elsewhere.in_allocation()).into());
        }
        return Err(Box::new(hand_over(&elsewhere, &flags, &words, manner, facts)).into());
    }
    if let Some(allocation) = allocation {
        return api::run_allocated(flags, &own, facts, &options, &allocation);
    }
    let launch = torchrun::resolve(flags, &own, manner, facts).map_err(Box::new)?;
    api::run(launch, facts, &options)
}

/// Puts torch's own torchrun in the place of this process. Returns only what went wrong.
fn hand_over(elsewhere: &Elsewhere, flags: &Flags, words: &Words, manner: Manner, facts: &Facts) -> RunError {
    let own = line::beyond_torchrun(&words.known, manner);
    let first = match manner {
        Manner::Torchrun => 1,
        Manner::Enn => 2,
    };
    let script = flags.command.first().map_or(OsStr::new(""), OsString::as_os_str);
    match elsewhere.command(&own, words.typed.get(first..).unwrap_or_default(), script, facts) {
        Ok(mut command) => {
            message::print(&elsewhere.note(&command));
            let source = command.exec();
            RunError::Execute { program: Path::new(command.get_program()).display().to_string(), source }
        }
        Err(error) => error,
    }
}

/// Takes out a `--` right behind the program, as torchrun's parser does, unless one before the program said already that all
/// that follows is not torchrun's.
pub(super) fn without_separator(mut command: Vec<OsString>, argv: &[String]) -> Vec<OsString> {
    let before = argv.len().checked_sub(command.len() + 1).and_then(|index| argv.get(index));
    if command.get(1).is_some_and(|word| word == "--") && before.is_none_or(|word| word != "--") {
        command.remove(1);
    }
    command
}
