//! `enn run`, and `enn-torchrun`.

use super::{completions::AnyShell, flags::Scrape};
use crate::{
    Error,
    api::{self, RunOptions},
    facts::Facts,
    torchrun::{self, Dialect, EnnFlags, Flags, RunError, TorchPlugIn},
};
use clap::{Args as _, CommandFactory, parser::ValueSource};
use enn_ui::{Mode, message};
use std::{
    ffi::{OsStr, OsString},
    os::unix::process::CommandExt,
    path::Path,
};

/// The words of a command line, the program's name first.
#[derive(Debug, Clone, Default)]
pub(super) struct Words {
    /// The words as typed.
    pub(super) typed: Vec<OsString>,
    /// The words without ignored flags.
    pub(super) known: Vec<OsString>,
}

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

    /// Returns the shell whose completions are printed instead of a run.
    pub(super) const fn completions(&self) -> Option<AnyShell> {
        self.print_completion
    }

    /// Returns the name under which this program was started, by which completions go.
    pub(super) fn program(&self, dialect: Dialect) -> String {
        match dialect {
            Dialect::Enn => "enn".to_owned(),
            Dialect::Torchrun => {
                let name = self.words.typed.first().and_then(|word| Path::new(word).file_name());
                name.unwrap_or_default().to_string_lossy().into_owned()
            }
        }
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
    let Args { mut flags, own, scrape, show, words, .. } = args;
    flags.command = without_separator(flags.command, &facts.argv);
    let options =
        RunOptions { runs_dir: own.runs_dir.clone(), mode: show.mode(), dialect, metrics_addr: scrape.metrics_addr };
    let flags = flags.with_variables(&facts.pet).map_err(Box::new)?;
    let allocation = api::allocation(&flags, dialect, facts)?;
    if let Some(plug_in) = torchrun::requested_plug_in(&flags) {
        if allocation.is_some() {
            // ENN finds the nodes of an allocation, and torch's torchrun would find none.
            return Err(Box::new(RunError::NotInSlurm { asked: plug_in.label() }).into());
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
    let own = beyond_torchrun(&words.known, dialect);
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

/// Returns the given flags that torchrun does not have. Both command lines have the same; `enn run` has one word more before them.
fn beyond_torchrun(words: &[OsString], dialect: Dialect) -> Vec<String> {
    let theirs = Flags::augment_args(clap::Command::default());
    let is_theirs = |id: &clap::Id| theirs.get_arguments().any(|argument| argument.get_id() == id);
    let name = match dialect {
        Dialect::Torchrun => 0,
        Dialect::Enn => 1,
    };
    let definition = Torchrun::command();
    // The words have been parsed successfully before.
    let matches = definition.clone().try_get_matches_from(words.get(name..).unwrap_or_default()).unwrap_or_default();
    let own = definition.get_arguments().filter(|argument| !is_theirs(argument.get_id()));
    let given = own.filter(|argument| {
        matches.try_contains_id(argument.get_id().as_str()).is_ok()
            && matches.value_source(argument.get_id().as_str()) == Some(ValueSource::CommandLine)
    });
    given.filter_map(|argument| argument.get_long()).map(|long| format!("--{long}")).collect()
}

/// Removes a `--` directly after the program, like torchrun's parser, unless a `--` before the program has ended torchrun's flags already.
pub(super) fn without_separator(mut command: Vec<OsString>, argv: &[String]) -> Vec<OsString> {
    let before = argv.len().checked_sub(command.len() + 1).and_then(|index| argv.get(index));
    if command.get(1).is_some_and(|word| word == "--") && before.is_none_or(|word| word != "--") {
        command.remove(1);
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn flags_of_ours_are_told_from_torchruns() {
        let own = |line: &str, dialect| beyond_torchrun(&words(line), dialect);
        let line = "enn run --rdzv-backend etcd --grace 2 --nproc 2 -q --metrics 9000 train.py --hang-timeout 3";
        assert_eq!(own(line, Dialect::Enn), ["--grace", "--metrics-addr", "--quiet"]);
        assert_eq!(own("enn run --rdzv-backend etcd -m a.b", Dialect::Enn), [""; 0]);
        assert_eq!(own("enn-torchrun --store-open --tee 3 train.py", Dialect::Torchrun), ["--store-open"]);
        assert_eq!(own("torchrun --role a train.py", Dialect::Torchrun), [""; 0]);
    }
}
