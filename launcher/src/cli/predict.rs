//! `enn predict`.

use super::{
    flags::{Changes, Cluster, Runs, Show, artifact_or_run},
    output,
};
use crate::{
    Error,
    api::{self, Engine, PredictOptions},
    error::Usage,
    facts::Facts,
};
use enn_common::{config::train::Precision, exit::ExitCode};
use std::{io::BufWriter, path::PathBuf};

/// Predict every row of a data file with a trained run's best weights, or with an exported model
///
/// An interrupted prediction resumes when called again with the same output.
///
/// With --data - and --out - both are Arrow IPC streams, on standard input and output: each batch is answered before the next one
/// is read. A batch is a table of its own, so that one cut into windows must bring its history.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Run: its directory, its name, the beginning of its name, its address, or "latest"; or a file of `enn export` with its ARTIFACT.json beside it
    ///
    /// An exported model reads the tables that its run reads, and computes in its own runtime.
    #[arg(value_name = "RUN|ARTIFACT", help_heading = "Job")]
    model: String,
    /// Data like those the run was trained on; targets may be absent; may be repeated; - for a stream
    #[arg(long, value_name = "FILE", required = true, help_heading = "Job")]
    data: Vec<PathBuf>,
    /// Output: NAME.parquet, NAME.arrow, NAME.csv, or a name without extension for a directory of .npy files; - for a stream
    #[arg(long, value_name = "PATH", help_heading = "Job")]
    out: PathBuf,
    /// Number format of the encoder: auto, fp32, tf32, bf16, fp16 or fp8; the heads always compute in fp32
    ///
    /// If different rows get the same answer, fp32 is tried, and kept if the answers then differ.
    #[arg(long, value_name = "FORMAT", default_value = "fp32", help_heading = "Job")]
    precision: Precision,
    /// Engine for a run: native (its own workers), onnx, ort, pt2, aoti, executorch, tensorrt, litert or tensorflow
    ///
    /// The run's newest checkpoint is exported in that format once, checked, and kept in the run's directory.
    #[arg(long, value_name = "ENGINE", help_heading = "Job")]
    engine: Option<Engine>,
    /// Write point predictions only, without quantiles
    #[arg(long, help_heading = "Job")]
    point: bool,
    /// Predict all the same where the model does not know most of a column's categories
    #[arg(long, help_heading = "Job")]
    allow_unseen: bool,
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
    let model = artifact_or_run(&args.model, &args.runs, facts)?;
    let mut overrides = args.changes.overrides();
    overrides.extend(args.cluster.overrides());
    let options = PredictOptions {
        mode: args.show.mode(),
        handle_signals: true,
        replace: args.replace,
        precision: args.precision,
        engine: args.engine,
        point: args.point,
        allow_unseen: args.allow_unseen,
        is_judged: false,
        overrides,
    };
    let is_pipe = |path: &PathBuf| path.as_os_str() == "-";
    let reads = args.data.iter().any(is_pipe);
    let writes = is_pipe(&args.out);
    if reads != writes || (reads && args.data.len() > 1) {
        return Err(Error::Usage(Usage::OnePipe));
    }
    if reads {
        api::predict_stream(&model, std::io::stdin().lock(), BufWriter::new(output::stdout()?), facts, &options)?;
        return Ok(ExitCode::Success);
    }
    let predictions = api::predict(&model, &args.data, &args.out, facts, &options)?;
    Ok(api::exit_code(&predictions.ended))
}
