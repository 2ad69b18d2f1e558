//! The command line: one file per subcommand, each with clap `Args` and a `run`. Decisions are made in the API.

mod bar;
mod chaos;
mod ckpt;
mod command;
mod compare;
mod complete;
mod completions;
mod cv;
mod data;
mod doctor;
mod evaluate;
mod event_log;
mod export;
mod flags;
mod gc;
mod help;
mod init;
mod kernels;
mod line;
mod logs;
mod ls;
mod man;
mod metrics;
mod mlflow;
mod model;
mod new;
mod output;
mod predict;
mod profile;
mod rm;
mod run;
mod runtime;
mod schema;
mod serve;
mod slurm;
mod stage;
mod status;
mod target_run;
mod task_table;
mod top;
mod train;
mod warm;

use crate::{Error, error::Usage, facts::Facts, torchrun::Dialect};
use clap::CommandFactory;
use command::{Cli, Command};
use enn_common::{exit::ExitCode, panics, shown};
use enn_ui::{event_channel, message, terminal};
use line::LineError;
use std::{ffi::OsString, path::Path};
use tracing_subscriber::{
    filter::{LevelFilter, Targets},
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

/// Names under which the program has torchrun's command line.
const TORCHRUN_NAMES: [&str; 2] = ["enn-torchrun", "torchrun"];

/// Runs the command line of this process.
pub fn main() -> std::process::ExitCode {
    let name = std::env::args_os().next().unwrap_or_default();
    let torchrun = Path::new(&name).file_name().is_some_and(|name| TORCHRUN_NAMES.iter().any(|known| name == *known));
    panics::install(if torchrun { "enn-torchrun" } else { "enn" });
    let dialect = if torchrun { Dialect::Torchrun } else { Dialect::Enn };
    let words: Vec<OsString> = std::env::args_os().collect();
    if dialect == Dialect::Enn && asks_for_version(&words) {
        return (code_of(output::text_line(&version_line()), dialect) as u8).into();
    }
    match complete::answer(&words) {
        Ok(true) => return (ExitCode::Success as u8).into(),
        Ok(false) => {}
        Err(error) => {
            print_parsed(&error);
            return (ExitCode::Usage as u8).into();
        }
    }
    // Errors in the rest of the command line are for the reader of the events, too.
    let events = line::events(&words).map(|number| event_channel::open(number).map_err(|_closed| number));
    let command = match line::parse(words, dialect) {
        Ok(command) => command,
        Err(LineError::Parser(error)) if error.use_stderr() && event_channel::is_open() => {
            let text = error.render().to_string();
            let text = text.split("\nFor more information").next().unwrap_or_default();
            event_channel::fail(text.trim_start_matches("error: "), ExitCode::Usage as u8);
            return (ExitCode::Usage as u8).into();
        }
        Err(LineError::Parser(error)) => {
            // Help and version go to standard output with code 0, mistakes to standard error with 2.
            print_parsed(&error);
            return (if error.use_stderr() { ExitCode::Usage } else { ExitCode::Success } as u8).into();
        }
        Err(LineError::Run(error)) => return (report(&Error::Run(error), dialect) as u8).into(),
    };
    let facts = Facts::gather();
    log(&facts);
    terminal::set_dumb(facts.dumb_terminal);
    let done = match events {
        Some(Err(number)) => Err(Error::Usage(Usage::Events { number })),
        _ => execute(command, dialect, &facts),
    };
    let code = match done {
        Ok(code) => code,
        Err(Error::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::Success as u8,
        Err(error) => report(&error, dialect) as u8,
    };
    // A thread that panicked has not done its work, and a signal may have been a consequence.
    if panics::happened() { (ExitCode::Fault as u8).into() } else { code.into() }
}

/// Returns whether the version is all that is asked for: it is told without making the whole command line, which takes longer.
fn asks_for_version(words: &[OsString]) -> bool {
    matches!(words, [_, word] if word == "--version" || word == "-V")
}

/// The line that the parser prints, too.
fn version_line() -> String {
    format!("enn {}", env!("CARGO_PKG_VERSION"))
}

/// Returns the exit code of an output; a closed pipe is no error.
fn code_of(printed: Result<(), Error>, dialect: Dialect) -> ExitCode {
    match printed {
        Ok(()) => ExitCode::Success,
        Err(Error::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::Success,
        Err(error) => report(&error, dialect),
    }
}

/// Prints help, version or a parser error, of which parts may come from untrusted input.
fn print_parsed(error: &clap::Error) {
    let text = error.render().to_string();
    if matches!(shown::lines(&text), std::borrow::Cow::Borrowed(_)) {
        let _gone = error.print();
    } else {
        message::print(text.trim_end());
    }
}

fn report(error: &Error, dialect: Dialect) -> ExitCode {
    let code = failure(error, dialect);
    if event_channel::is_open() {
        event_channel::fail(&error.to_string(), code as u8);
    } else {
        message::print(&format!("error: {}", error.to_string().replace('\n', "\n       ")));
    }
    code
}

/// Returns the exit code of an error. torchrun has two: 2 for parser errors, 1 for the rest.
fn failure(error: &Error, dialect: Dialect) -> ExitCode {
    match (dialect, error) {
        (Dialect::Enn, error) => error.exit_code(),
        (Dialect::Torchrun, Error::Run(error)) => error.torchrun_code(),
        (Dialect::Torchrun, _) => ExitCode::WorkerFailed,
    }
}

fn execute(command: Command, dialect: Dialect, facts: &Facts) -> Result<u8, Error> {
    facts.check_private()?;
    let done = |result: Result<(), Error>| result.map(|()| ExitCode::Success);
    let code = match command {
        // The exit code may be that of a worker.
        Command::Run(args) => match args.completions() {
            Some(shell) => done(completions::print(shell, whole(dialect), &args.program(dialect))),
            None => return run::run(*args, dialect, facts),
        },
        Command::Train(args) => return train::run(&args, facts),
        Command::New(args) => done(new::run(&args, facts)),
        Command::Cv(args) => return cv::run(&args, facts),
        Command::Predict(args) => predict::run(&args, facts),
        Command::Serve(args) => serve::run(&args, facts),
        Command::Evaluate(args) => evaluate::run(&args, facts),
        Command::Export(args) => export::run(&args, facts),
        Command::Init(args) => done(init::run(&args, facts)),
        Command::Stage(args) => done(stage::run(&args, facts)),
        Command::Metrics(args) => done(metrics::run(&args, facts)),
        Command::Profile(args) => done(profile::run(&args, facts)),
        Command::Status(args) => done(status::run(&args, facts)),
        Command::Ls(args) => done(ls::run(&args, facts)),
        Command::Compare(args) => done(compare::run(&args, facts)),
        Command::Mlflow(args) => done(mlflow::run(&args, facts)),
        Command::Rm(args) => done(rm::run(&args, facts)),
        Command::Gc(args) => done(gc::run(&args, facts)),
        Command::Top(args) => done(top::run(&args, facts)),
        Command::Request(command) => done(target_run::run(&command, facts)),
        Command::Logs(args) => done(logs::run(&args, facts)),
        Command::Kernels(args) => done(kernels::run(&args, facts)),
        Command::Chaos(args) => chaos::run(&args, facts),
        Command::Ckpt(args) => ckpt::run(&args, facts),
        Command::Data(args) => data::run(&args, facts),
        Command::Model(args) => done(model::run(&args, facts)),
        Command::Warm(args) => done(warm::run(&args, facts)),
        Command::Slurm(args) => done(slurm::run(&args, facts)),
        Command::Doctor(args) => doctor::run(&args, facts),
        Command::Help(args) => done(help::run(&args, &Cli::command())),
        Command::Completions(args) => done(completions::run(&args, Cli::command())),
        Command::Man(args) => done(man::run(&args, &Cli::command())),
        Command::Schema(args) => done(schema::run(&args)),
        Command::Runtime(args) => done(runtime::run(&args)),
    };
    code.map(|code| code as u8)
}

/// Returns the whole command line.
fn whole(dialect: Dialect) -> clap::Command {
    match dialect {
        Dialect::Enn => Cli::command(),
        Dialect::Torchrun => run::Torchrun::command(),
    }
}

fn log(facts: &Facts) {
    let wanted = facts.log.as_deref().unwrap_or("warn");
    let filter = wanted.parse::<Targets>();
    // A standard error that cannot be written, on a full disk for instance, must not cause a panic.
    let lines =
        tracing_subscriber::fmt::layer().with_writer(|| message::LogWriter).with_ansi(false).log_internal_errors(false);
    let chosen = filter.as_ref().map_or_else(|_| Targets::new().with_default(LevelFilter::WARN), Targets::clone);
    // A program that embeds this one may have a subscriber of its own.
    let _set = tracing_subscriber::registry().with(lines).with(event_log::EventLog).with(chosen).try_init();
    if let Err(error) = filter {
        tracing::warn!("ENN_LOG={wanted}: {error}; expected a level, or target=level,…: enn_launcher=debug,warn");
    }
}

#[cfg(test)]
mod tests;
