//! The binary `enn-worker`: one process of a run, started by `enn`.

use std::process::ExitCode;

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|flag| flag == "--probe") {
        return enn_worker::probe::print();
    }
    ExitCode::SUCCESS
}
