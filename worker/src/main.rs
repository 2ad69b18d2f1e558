//! The binary `enn-worker`: one process of a run, started by `enn`; with `--probe` it tells what it was built and finds itself
//! with, with `--serve` it predicts what it is asked on its standard input, with `--engine` it runs an exported artifact so.

use enn_worker::session::{Own, program};
use std::process::ExitCode;

fn main() -> ExitCode {
    program(&Own::default())
}
