//! `enn predict`.

use super::flags::{Changes, Cluster, Runs, Show};
use crate::{
    Error,
    api::{self, PredictOptions},
    facts::Facts,
    run_dir,
};
use enn_common::{config::train::Precision, exit::ExitCode};
use std::path::PathBuf;

/// Predict every row of a data file with a trained run's best weights
///
/// Prediction that was interrupted goes on where it was when called again with the same output.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Run: its directory, its name, the beginning of its name, or "latest"
    #[arg(value_name = "RUN", help_heading = "Job")]
    run: String,
    /// Data like those the run was trained on; targets may be absent; may be repeated
    #[arg(long, value_name = "FILE", required = true, help_heading = "Job")]
    data: Vec<PathBuf>,
    /// Output: NAME.parquet, or a name without extension for a directory of .npy files
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
    let mut overrides = args.changes.overrides();
    overrides.extend(args.cluster.overrides());
    let (mode, replace, precision) = (args.show.mode(), args.replace, args.precision);
    let options = PredictOptions { mode, handle_signals: true, replace, precision, overrides };
    let predictions = api::predict(&facts.cwd.join(run), &args.data, &args.out, facts, &options)?;
    Ok(api::exit_code(&predictions.ended))
}
