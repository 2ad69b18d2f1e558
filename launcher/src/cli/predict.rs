//! `enn predict`.

use super::flags::{Runs, Show};
use crate::{
    Error,
    api::{self, CHUNK_ROWS, PredictOptions},
    facts::Facts,
    run_dir,
};
use enn_common::exit::ExitCode;
use std::path::PathBuf;

/// Predict with a run's best model
///
/// The data have the form the model was trained on; targets may be absent. Every row of the source is predicted, in its order
/// and in the target's own unit. A prediction that was interrupted goes on where it ended when called again.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Run: its directory, its name, the beginning of its name, or "latest"
    #[arg(value_name = "RUN", help_heading = "Job")]
    run: String,
    /// Data to predict; may be repeated
    #[arg(long, value_name = "FILE", required = true, help_heading = "Data")]
    data: Vec<PathBuf>,
    /// Output: NAME.parquet, or a name without extension for a directory of .npy
    #[arg(long, value_name = "PATH", help_heading = "Data")]
    out: PathBuf,
    /// Replace the output when it is there
    #[arg(long, help_heading = "Data")]
    replace: bool,
    /// Rows that a worker predicts and writes at once
    #[arg(long, value_name = "N", default_value_t = CHUNK_ROWS, value_parser = clap::value_parser!(u64).range(1..), help_heading = "Data")]
    chunk_rows: u64,
    /// Workers [default: as many as trained the model]
    #[arg(long, alias = "nproc_per_node", value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Cluster")]
    nproc_per_node: Option<u32>,
    #[command(flatten)]
    runs: Runs,
    #[command(flatten)]
    show: Show,
}

pub(super) fn run(args: &Args, facts: &Facts) -> Result<ExitCode, Error> {
    let run = run_dir::find(&args.runs.dir(facts), &args.run)?;
    let options = PredictOptions {
        files: args.data.clone(),
        output: args.out.clone(),
        replace: args.replace,
        chunk_rows: args.chunk_rows,
        workers: args.nproc_per_node,
        mode: args.show.mode(),
        handle_signals: true,
    };
    Ok(api::exit_code(&api::predict(&run, facts, &options)?.ended))
}
