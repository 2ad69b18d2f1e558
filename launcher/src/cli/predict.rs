//! `enn predict`.

use super::flags::{Changes, Cluster, Runs, Show};
use crate::{
    Error,
    api::{self, PredictOptions},
    error::Usage,
    facts::Facts,
    run_dir,
};
use enn_common::{config::train::Precision, exit::ExitCode};
use std::path::PathBuf;

/// Predict every row of a data file with a trained run's best weights
///
/// Prediction that was interrupted goes on where it was when called again with the same output.
///
/// With --data - and --out - both are Arrow IPC streams, on standard input and output: each batch is answered before the next one
/// is read. A batch is a table of its own, so that one cut into windows must bring its history.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Run: its directory, its name, the beginning of its name, or "latest"
    #[arg(value_name = "RUN", help_heading = "Job")]
    run: String,
    /// Data like those the run was trained on; targets may be absent; may be repeated; - for a stream
    #[arg(long, value_name = "FILE", required = true, help_heading = "Job")]
    data: Vec<PathBuf>,
    /// Output: NAME.parquet, or a name without extension for a directory of .npy files; - for a stream
    #[arg(long, value_name = "PATH", help_heading = "Job")]
    out: PathBuf,
    /// What the encoder computes in: auto, fp32, tf32, bf16, fp16 or fp8; the heads always compute in fp32
    ///
    /// Where answers to different rows come out the same, fp32 is tried, and kept if they differ then.
    #[arg(long, value_name = "FORMAT", default_value = "fp32", help_heading = "Job")]
    precision: Precision,
    /// Replace the output if it is there
    #[arg(long, help_heading = "Job")]
    replace: bool,
    #[command(flatten)]
    runs: Runs,
    #[command(flatten)]
    changes: Changes,
    #[command(flatten)]
    cluster: Cluster,
    #[command(flatten)]
    show: Show,
}

pub(super) fn run(args: &Args, facts: &Facts) -> Result<ExitCode, Error> {
    let run = run_dir::find(&args.runs.dir(facts), &args.run)?;
    let (mode, replace, precision) = (args.show.mode(), args.replace, args.precision);
    let mut overrides = args.changes.overrides();
    overrides.extend(args.cluster.overrides());
    let options = PredictOptions { mode, handle_signals: true, replace, precision, overrides };
    let is_pipe = |path: &PathBuf| path.as_os_str() == "-";
    let (reads, writes) = (args.data.iter().any(is_pipe), is_pipe(&args.out));
    if reads != writes || (reads && args.data.len() > 1) {
        return Err(Error::Usage(Usage::OnePipe));
    }
    if reads {
        let (input, output) = (std::io::stdin().lock(), std::io::stdout().lock());
        api::predict_stream(&facts.cwd.join(run), input, output, facts, &options)?;
        return Ok(ExitCode::Success);
    }
    let predictions = api::predict(&facts.cwd.join(run), &args.data, &args.out, facts, &options)?;
    Ok(api::exit_code(&predictions.ended))
}
