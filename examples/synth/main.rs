//! Tables with a known truth, for judging what a model has learnt: the smallest possible error is printed, and a training
//! configuration is written beside them.
//!
//! `cargo run --release -p enn-examples --bin synth -- categories --out target/synth --structure crossed`, then
//! `enn cv target/synth/crossed.toml`.
//!
//! **Invariant:** equal arguments give equal bytes; memory does not grow with the number of rows.

mod categories;
mod field;
mod random;
mod table;

use clap::Parser;
use std::{io::Write, process::ExitCode};

#[derive(Debug, Parser)]
#[command(name = "synth", about = "Tables with a known truth")]
enum Synth {
    Categories(categories::Args),
    Field(field::Args),
}

fn main() -> ExitCode {
    let made = match Synth::parse() {
        Synth::Categories(args) => categories::make(&args),
        Synth::Field(args) => field::make(&args),
    };
    match made {
        Ok(text) => {
            // A closed standard output is no error.
            let _gone = std::io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(error) => {
            let _gone = writeln!(std::io::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}
