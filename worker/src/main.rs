//! The binary `enn-worker`: one process of a run, started by `enn`; with `--probe` it tells what it was built and finds itself
//! with, with `--serve` it predicts what it is asked on its standard input.

use enn_worker::{
    probe,
    session::{self, boot::Environment},
};
use std::{io::Write, process::ExitCode};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    match std::env::args_os().nth(1) {
        Some(flag) if flag == "--probe" => return probe::print(),
        Some(flag) if flag == "--serve" => {
            return match session::serve::serve(std::io::stdin().lock(), std::io::stdout().lock()) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => fail(&error.sentence()),
            };
        }
        _ => {}
    }
    let environment = match Environment::read() {
        Ok(environment) => environment,
        Err(error) => return fail(&error.sentence()),
    };
    let filter = EnvFilter::try_new(&environment.log).unwrap_or_else(|_| EnvFilter::new("warn"));
    // A log on a full disk is told by nobody and ends nobody: told, it would be a panic.
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).log_internal_errors(false).init();
    match session::run(&environment) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error.sentence()),
    }
}

/// Into the worker's log file, which is its standard error; it may be full.
fn fail(sentence: &str) -> ExitCode {
    let _full = writeln!(std::io::stderr(), "enn-worker: {sentence}");
    ExitCode::FAILURE
}
