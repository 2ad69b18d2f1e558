//! The binary `enn-worker`: one process of a run, started by `enn`. With `--probe` it describes its build and the
//! hardware it finds, with `--serve` it predicts the requests on its standard input, with `--engine` it does so with an
//! exported artifact.

use enn_worker::session::{Own, end, program};

fn main() {
    end(program(&Own::default()))
}
