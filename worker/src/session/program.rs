//! A worker program, from its command line to its exit code: `enn-worker`, and those of users around models of their own.

use super::inference::{engine, export, serve};
use super::{Own, SessionError, boot::Environment, link::unix, run::run_with};
use crate::probe;
use enn_common::{panics, shown};
use std::{io::Write, process::ExitCode};
use tracing_subscriber::{
    filter::{LevelFilter, Targets},
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

/// Works as a worker with what is the program's own. With `--probe` it tells what it was built and finds itself with; with
/// `--serve` it answers a stream, with `--engine` it runs an exported artifact, with `--export` it makes a graph of a
/// checkpoint's model.
pub fn program(own: &Own) -> ExitCode {
    panics::install("enn-worker");
    match std::env::args_os().nth(1) {
        Some(flag) if flag == "--probe" => return probe::print(),
        Some(flag) if flag == "--serve" => {
            return asked(|| serve::serve(std::io::stdin().lock(), std::io::stdout().lock(), own));
        }
        Some(flag) if flag == "--engine" => {
            return asked(|| engine::answer(std::io::stdin().lock(), std::io::stdout().lock()));
        }
        Some(flag) if flag == "--export" => {
            return asked(|| export::answer(std::io::stdin().lock(), std::io::stdout().lock(), own));
        }
        _ => {}
    }
    let environment = match Environment::read() {
        Ok(environment) => environment,
        Err(error) => return fail(&error.sentence()),
    };
    // The program that started this one reports what is wrong with it.
    let filter = environment.log.parse().unwrap_or_else(|_| Targets::new().with_default(LevelFilter::WARN));
    // A log on a full disk is not reported: the report would be a panic.
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).log_internal_errors(false);
    tracing_subscriber::registry().with(lines).with(filter).init();
    ended(run_with(&environment, own))
}

/// Ends the process with what [`program`] returned. Everything is closed by then, and what was written is passed on here; what libtorch would
/// do behind that takes a second and frees memory that the system frees anyway.
pub fn end(code: ExitCode) -> ! {
    let _lost = std::io::stdout().flush();
    let _lost = std::io::stderr().flush();
    unix::exit_now(i32::from(code != ExitCode::SUCCESS))
}

/// Works over two pipes, and ends with its input, or soon after the parent process if it computes then.
fn asked(work: impl FnOnce() -> Result<(), SessionError>) -> ExitCode {
    // Without it there is the end of its input.
    let _unwatched = unix::end_after_parent();
    ended(work())
}

fn ended(work: Result<(), SessionError>) -> ExitCode {
    work.map_or_else(|error| fail(&error.sentence()), |()| ExitCode::SUCCESS)
}

/// Into the worker's log file, which is its standard error; it may be full.
fn fail(sentence: &str) -> ExitCode {
    let _full = writeln!(std::io::stderr(), "enn-worker: {}", shown::lines(sentence));
    ExitCode::FAILURE
}
