//! The program `enn`: a thin shell over the library.

use enn_launcher::cli;
use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
