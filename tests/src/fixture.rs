//! What the programs have in common that make and read files for the conformance checks.

use std::{error::Error, io::Write, process::ExitCode};

/// Runs `obey` on the arguments; what it says of them goes to standard error.
pub fn main(obey: impl FnOnce(&[&str]) -> Result<(), Box<dyn Error>>) -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match obey(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _gone = writeln!(std::io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}
