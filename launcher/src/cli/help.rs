//! `enn help`.

use super::output;
use crate::{
    Error,
    error::Usage,
    help::{self, CommandBrief, markdown, markdown::TextScreen},
};
use clap::Command;
use enn_ui::terminal;
use std::io::IsTerminal;

/// Columns when standard output is no terminal, and at most: longer lines are hard to read.
const WIDTH: usize = 100;

/// Help on a topic, a command or a key of the configuration; without one, the list of topics and commands
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Topic, command or key, e.g. recovery, ckpt diff, train.epochs
    #[arg(value_name = "TOPIC", help_heading = "Job")]
    words: Vec<String>,
}

/// Prints help. `cli`: the command line of `enn`.
pub(super) fn run(args: &Args, cli: &Command) -> Result<(), Error> {
    if args.words.is_empty() {
        return show(&help::overview(&commands(cli)));
    }
    if let Some(text) = help_of_command(cli, &args.words) {
        return text;
    }
    let word = args.words.join(" ");
    match help::on(&word) {
        Some(text) => show(&text),
        None => {
            let names: Vec<String> = commands(cli).into_iter().map(|one| one.name).collect();
            Err(Error::Usage(Usage::NoTopic { meant: help::meant(&word, &names), word }))
        }
    }
}

/// Prints what `enn COMMAND --help` prints, and the topic that tells more; `None` where the words are no command.
fn help_of_command(cli: &Command, words: &[String]) -> Option<Result<(), Error>> {
    let mut command = cli;
    for word in words {
        command = command.find_subcommand(word)?;
    }
    let line = std::iter::once("enn").chain(words.iter().map(String::as_str)).chain(["--help"]);
    let error = cli.clone().try_get_matches_from(line).err()?;
    let rendered = error.render();
    let is_drawn = terminal::draws(&std::io::stdout());
    let mut text = if is_drawn { rendered.ansi().to_string() } else { rendered.to_string() };
    if let Some(topic) = help::beside(&words[0]) {
        text.push_str(&format!("\nMore: enn help {topic}\n"));
    }
    Some(output::bytes(text.as_bytes()))
}

/// Returns the commands that are listed.
fn commands(cli: &Command) -> Vec<CommandBrief> {
    let visible = cli.get_subcommands().filter(|sub| !sub.is_hide_set());
    let brief = |sub: &Command| CommandBrief {
        name: sub.get_name().to_owned(),
        about: sub.get_about().map(ToString::to_string).unwrap_or_default(),
    };
    visible.map(brief).collect()
}

fn show(text: &str) -> Result<(), Error> {
    let width = output::columns().map_or(WIDTH, |columns| usize::from(columns).min(WIDTH));
    let has_colours = std::io::stdout().is_terminal() && terminal::draws(&std::io::stdout());
    // Control characters in the text are escaped already: what is left are colours.
    output::bytes(format!("{}\n", markdown::text(text, TextScreen { width, has_colours })).as_bytes())
}
