//! The program `enn`, which calls the library.

use enn_launcher::cli;
use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
