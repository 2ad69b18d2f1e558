//! The command line of this process: parsed, where a flag of a newer torchrun before the program is set aside, not refused.

use super::{Cli, Command, run};
use crate::{
    facts::Facts,
    torchrun::{self, Flags, Manner, RunError},
};
use clap::{Args, CommandFactory, Parser, error::ErrorKind, parser::ValueSource};
use std::ffi::OsString;

/// What is wrong with a command line.
#[derive(Debug)]
pub(super) enum Wrong {
    /// It does not parse, or asks for help.
    Parser(clap::Error),
    /// It cannot be told what is to be run.
    Run(Box<RunError>),
}

/// The words of a command line, the program's name first.
#[derive(Debug, Clone, Default)]
pub(super) struct Words {
    /// All of them.
    pub(super) typed: Vec<OsString>,
    /// Without those that were set aside.
    pub(super) known: Vec<OsString>,
}

/// Reads the words of a command line, the program's name first.
pub(super) fn parse(words: Vec<OsString>, manner: Manner) -> Result<Command, Wrong> {
    let error = match parse_known(&words, manner) {
        Ok(command) => return Ok(typed(command, Words { known: words.clone(), typed: words }, Vec::new())),
        Err(error) => error,
    };
    let first = match manner {
        Manner::Torchrun => 1,
        Manner::Enn => 2,
    };
    if error.kind() != ErrorKind::UnknownArgument || (first == 2 && words.get(1).is_none_or(|word| word != "run")) {
        return Err(Wrong::Parser(error));
    }
    let facts = Facts::gather();
    let known = torchrun::set_aside(&words, first, &definition(manner), &facts);
    match known.map_err(|error| Wrong::Run(Box::new(error)))? {
        Some(torchrun::Known { words: left, notes }) => {
            let command = parse_known(&left, manner).map_err(Wrong::Parser)?;
            Ok(typed(command, Words { typed: words, known: left }, notes))
        }
        None => Err(Wrong::Parser(error)),
    }
}

pub(super) fn parse_known(words: &[OsString], manner: Manner) -> Result<Command, clap::Error> {
    match manner {
        Manner::Torchrun => run::Torchrun::try_parse_from(words).map(|torchrun| Command::Run(Box::new(torchrun.args))),
        Manner::Enn => Cli::try_parse_from(words).map(|cli| cli.command),
    }
}

fn typed(command: Command, words: Words, notes: Vec<String>) -> Command {
    match command {
        Command::Run(args) => Command::Run(Box::new(args.typed(words, notes))),
        command => command,
    }
}

/// `enn run`, or `enn-torchrun`, as clap knows it.
fn definition(manner: Manner) -> clap::Command {
    match manner {
        Manner::Torchrun => run::Torchrun::command(),
        Manner::Enn => Cli::command().find_subcommand("run").cloned().unwrap_or_default(),
    }
}

/// Flags that were typed and that torchrun does not have: ours.
pub(super) fn beyond_torchrun(words: &[OsString], manner: Manner) -> Vec<String> {
    let theirs = Flags::augment_args(clap::Command::default());
    let is_theirs = |id: &clap::Id| theirs.get_arguments().any(|argument| argument.get_id() == id);
    let whole = match manner {
        Manner::Torchrun => run::Torchrun::command(),
        Manner::Enn => Cli::command(),
    };
    // They were parsed before.
    let matches = whole.try_get_matches_from(words).unwrap_or_default();
    let matches = matches.subcommand().map_or(&matches, |(_, matches)| matches);
    let definition = definition(manner);
    let own = definition.get_arguments().filter(|argument| !is_theirs(argument.get_id()));
    let given = own.filter(|argument| {
        matches.try_contains_id(argument.get_id().as_str()).is_ok()
            && matches.value_source(argument.get_id().as_str()) == Some(ValueSource::CommandLine)
    });
    given.filter_map(|argument| argument.get_long()).map(|long| format!("--{long}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn flags_of_ours_are_told_from_torchruns() {
        let own = |line: &str, manner| beyond_torchrun(&words(line), manner);
        let line = "enn run --rdzv-backend etcd --grace 2 --nproc 2 -q --metrics 9000 train.py --hang-timeout 3";
        assert_eq!(own(line, Manner::Enn), ["--grace", "--metrics-addr", "--quiet"]);
        assert_eq!(own("enn run --rdzv-backend etcd -m a.b", Manner::Enn), [""; 0]);
        assert_eq!(own("enn-torchrun --store-open --tee 3 train.py", Manner::Torchrun), ["--store-open"]);
        assert_eq!(own("torchrun --role a train.py", Manner::Torchrun), [""; 0]);
    }

    #[test]
    fn an_unknown_flag_is_set_aside_only_where_torchruns_are_known() {
        let parsed = |line: &str, manner| parse(words(line), manner);
        assert!(parsed("enn run --cool-new=1 - a", Manner::Enn).is_ok());
        assert!(parsed("enn-torchrun --cool-new 1 - a", Manner::Torchrun).is_ok());
        for (line, manner) in [
            ("enn train --cool-new=1 x.toml", Manner::Enn),
            ("enn --cool-new=1 run -", Manner::Enn),
            ("enn run --nproc-per-nodes 2 -", Manner::Enn),
        ] {
            let wrong = parsed(line, manner).unwrap_err();
            assert!(
                matches!(&wrong, Wrong::Parser(error) if error.kind() == ErrorKind::UnknownArgument),
                "{line}: {wrong:?}"
            );
        }
        let wrong = parsed("enn run --cool-new 1 --nproc-per-nodes 2 -", Manner::Enn).unwrap_err();
        let Wrong::Parser(error) = wrong else { panic!("{wrong:?}") };
        assert!(error.to_string().contains("'--nproc-per-nodes'"), "{error}");
        assert!(matches!(parsed("enn run --cool-new no-such.py", Manner::Enn), Err(Wrong::Run(_))));
    }
}
