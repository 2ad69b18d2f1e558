//! The binary `enn-worker`: one process of a run, started by `enn`; with `--probe` it tells what it was built and finds itself with.

use enn_worker::{
    probe,
    session::{self, boot::Environment},
};
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|flag| flag == "--probe") {
        return probe::print();
    }
    let environment = match Environment::read() {
        Ok(environment) => environment,
        Err(error) => return fail(&error.sentence()),
    };
    let filter = EnvFilter::try_new(&environment.log).unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    match session::run(&environment) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error.sentence()),
    }
}

#[expect(clippy::print_stderr, reason = "the worker's log file is its standard error")]
fn fail(sentence: &str) -> ExitCode {
    eprintln!("enn-worker: {sentence}");
    ExitCode::FAILURE
}
