//! Parses the command line of this process. Flags of a newer torchrun before the program are ignored with a note.

use super::{
    command::{Cli, Command},
    run::{Torchrun, Words},
};
use crate::{
    facts::Facts,
    help,
    torchrun::{self, Dialect, RunError},
};
use clap::{
    CommandFactory, Parser,
    error::{ContextKind, ContextValue, ErrorKind},
};
use std::ffi::OsString;

/// An error in a command line.
#[derive(Debug)]
pub(super) enum LineError {
    /// The command line does not parse, or asks for help.
    Parser(clap::Error),
    /// The program to run cannot be found among the arguments.
    Run(Box<RunError>),
}

/// Reads the words of a command line, the program's name first.
pub(super) fn parse(words: Vec<OsString>, dialect: Dialect) -> Result<Command, LineError> {
    let error = match parse_known(&words, dialect) {
        Ok(command) => return Ok(typed(command, Words { known: words.clone(), typed: words }, Vec::new())),
        Err(error) => error,
    };
    let first = match dialect {
        Dialect::Torchrun => 1,
        Dialect::Enn => 2,
    };
    if error.kind() != ErrorKind::UnknownArgument || (first == 2 && words.get(1).is_none_or(|word| word != "run")) {
        return Err(LineError::Parser(with_key(error, &words)));
    }
    let facts = Facts::gather();
    let known = torchrun::remove_unknown_flags(&words, first, &definition(dialect), &facts);
    match known.map_err(|error| LineError::Run(Box::new(error)))? {
        Some(torchrun::RecognizedWords { words: left, notes }) => {
            let command = parse_known(&left, dialect).map_err(LineError::Parser)?;
            Ok(typed(command, Words { typed: words, known: left }, notes))
        }
        None => Err(LineError::Parser(error)),
    }
}

/// Names the keys of a configuration that an unknown flag may mean, for a command that takes `--set`.
fn with_key(mut error: clap::Error, words: &[OsString]) -> clap::Error {
    let command = Cli::command();
    let named = words.get(1).and_then(|word| command.find_subcommand(word));
    let takes_keys =
        named.is_some_and(|named| named.get_arguments().any(|argument| argument.get_long() == Some("set")));
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg).filter(|_| takes_keys) else {
        return error;
    };
    let name = flag.trim_start_matches('-').replace('-', "_");
    let keys: Vec<String> = help::key_names().into_iter().filter(|key| key.rsplit('.').next() == Some(&name)).collect();
    if !keys.is_empty() {
        let flags: Vec<String> = keys.iter().map(|key| format!("'--set {key}=…'")).collect();
        let tip = format!("a key of the configuration is set by {}", flags.join(" or "));
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

/// Returns the descriptor of `--events` in the command line of a command that has this flag, whether or not the rest is understood.
pub(super) fn events(words: &[OsString]) -> Option<i32> {
    let [_, command, rest @ ..] = words else { return None };
    if command != "train" && command != "predict" {
        return None;
    }
    let rest: Vec<&str> = rest.iter().filter_map(|word| word.to_str()).take_while(|word| *word != "--").collect();
    let one = |at: usize| match rest[at].strip_prefix("--events")? {
        "" => rest.get(at + 1)?.parse().ok(),
        value => value.strip_prefix('=')?.parse().ok(),
    };
    (0..rest.len()).find_map(one).filter(|number| *number > 0)
}

pub(super) fn parse_known(words: &[OsString], dialect: Dialect) -> Result<Command, clap::Error> {
    match dialect {
        Dialect::Torchrun => Torchrun::try_parse_from(words).map(|torchrun| Command::Run(Box::new(torchrun.args))),
        Dialect::Enn => Cli::try_parse_from(words).map(|cli| cli.command),
    }
}

fn typed(command: Command, words: Words, notes: Vec<String>) -> Command {
    match command {
        Command::Run(args) => Command::Run(Box::new(args.typed(words, notes))),
        command => command,
    }
}

fn definition(dialect: Dialect) -> clap::Command {
    match dialect {
        Dialect::Torchrun => Torchrun::command(),
        Dialect::Enn => Cli::command().find_subcommand("run").cloned().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn events_are_found_in_a_line_that_is_not_understood() {
        for (line, found) in [
            ("enn train x.toml --events 3 --nosuch", Some(3)),
            ("enn predict --events=12", Some(12)),
            ("enn predict --events -1", None),
            ("enn run --events 3", None),
            ("enn train -- --events 3", None),
            ("enn train --events", None),
        ] {
            assert_eq!(events(&words(line)), found, "{line}");
        }
    }

    #[test]
    fn a_flag_that_has_the_name_of_a_key_is_answered_with_it() {
        let said = |line: &str| match parse(words(line), Dialect::Enn) {
            Err(LineError::Parser(error)) => error.to_string(),
            other => panic!("{line}: {other:?}"),
        };
        let told = said("enn train x.csv --epochs 5");
        assert!(told.contains("tip: a key of the configuration is set by '--set train.epochs=…'\n"), "{told}");
        assert!(said("enn cv x.toml --checkpoint-every=2").contains("'--set train.checkpoint_every=…'"));
        for line in ["enn train x.csv --no-such-key", "enn ls --epochs 5"] {
            assert!(!said(line).contains("--set"), "{line}");
        }
    }

    #[test]
    fn an_unknown_flag_is_set_aside_only_where_torchruns_are_known() {
        let parsed = |line: &str, dialect| parse(words(line), dialect);
        assert!(parsed("enn run --cool-new=1 - a", Dialect::Enn).is_ok());
        assert!(parsed("enn-torchrun --cool-new 1 - a", Dialect::Torchrun).is_ok());
        for (line, dialect) in [
            ("enn train --cool-new=1 x.toml", Dialect::Enn),
            ("enn --cool-new=1 run -", Dialect::Enn),
            ("enn run --nproc-per-nodes 2 -", Dialect::Enn),
        ] {
            let wrong = parsed(line, dialect).unwrap_err();
            assert!(
                matches!(&wrong, LineError::Parser(error) if error.kind() == ErrorKind::UnknownArgument),
                "{line}: {wrong:?}"
            );
        }
        let wrong = parsed("enn run --cool-new 1 --nproc-per-nodes 2 -", Dialect::Enn).unwrap_err();
        let LineError::Parser(error) = wrong else { panic!("{wrong:?}") };
        assert!(error.to_string().contains("'--nproc-per-nodes'"), "{error}");
        assert!(matches!(parsed("enn run --cool-new no-such.py", Dialect::Enn), Err(LineError::Run(_))));
    }
}
