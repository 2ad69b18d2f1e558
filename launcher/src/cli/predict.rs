//! `enn predict`.

use super::{
    flags::{Changes, Cluster, Events, Runs, Show, artifact_or_run},
    output,
};
use crate::{
    Error,
    api::{self, Engine, PredictAnswer, PredictOptions, RequestLimits},
    error::Usage,
    facts::Facts,
};
use enn_checkpoint::gather::Gathered;
use enn_common::{config::train::Precision, exit::ExitCode};
use enn_ui::{Mode, event_channel};
use serde_json::json;
use std::{
    io::{BufReader, BufWriter},
    path::PathBuf,
    time::Duration,
};

/// Predict every row of a data file with a trained run's best weights, or with an exported model
///
/// An interrupted prediction resumes when called again with the same output.
///
/// With --data - and --out - both are Arrow IPC streams, on standard input and output: each batch is answered before the next one
/// is read. A batch is a table of its own, so that one cut into windows must bring its history.
///
/// With --requests the model stays loaded, and standard input has a line of JSON for each prediction:
/// {"request": 1, "data": ["new.csv"], "out": "answers.parquet"}, and if wanted "allow_unseen": true, "replace": true, "scratch": DIR. Each is answered by
/// an event `answered` or `refused` on the descriptor of --events.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Run: its directory, its name, the beginning of its name, its address, or "latest"; or a file of `enn export` with its ARTIFACT.json beside it
    ///
    /// An exported model reads the tables that its run reads, and computes in its own runtime.
    #[arg(value_name = "RUN|ARTIFACT", help_heading = "Job")]
    model: String,
    /// Data like those the run was trained on; targets may be absent; may be repeated; - for a stream
    #[arg(long, value_name = "FILE", required_unless_present = "requests", help_heading = "Job")]
    data: Vec<PathBuf>,
    /// Output: NAME.parquet, NAME.arrow, NAME.csv, or a name without extension for a directory of .npy files; - for a stream
    #[arg(long, value_name = "PATH", required_unless_present = "requests", help_heading = "Job")]
    out: Option<PathBuf>,
    /// Answer requests from standard input until it ends
    #[arg(long, requires = "events", conflicts_with_all = ["data", "out", "precision", "allow_unseen", "replace"], help_heading = "Job")]
    requests: bool,
    /// With --requests: end when no request has come for so many seconds
    #[arg(long, value_name = "SECONDS", requires = "requests", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Job")]
    idle: Option<u32>,
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
    #[command(flatten)]
    events: Events,
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
    let Some(out) = &args.out else {
        let limits = RequestLimits { idle: args.idle.map(|seconds| Duration::from_secs(seconds.into())) };
        let requests = BufReader::new(std::io::stdin());
        // Whoever asks ends it by the end of the requests, or by a signal, after which nothing is to be saved.
        let options = PredictOptions { mode: Mode::Quiet, handle_signals: false, ..options };
        api::answer_requests(&model, requests, facts, &options, &limits, &mut tell)?;
        return Ok(ExitCode::Success);
    };
    let is_pipe = |path: &PathBuf| path.as_os_str() == "-";
    let reads = args.data.iter().any(is_pipe);
    let writes = is_pipe(out);
    if reads != writes || (reads && args.data.len() > 1) {
        return Err(Error::Usage(Usage::OnePipe));
    }
    if reads {
        api::predict_stream(&model, std::io::stdin().lock(), BufWriter::new(output::stdout()?), facts, &options)?;
        return Ok(ExitCode::Success);
    }
    let predictions = api::predict(&model, &args.data, out, facts, &options)?;
    Ok(api::exit_code(&predictions.ended))
}

/// Writes what is told of a request as an event.
fn tell(answer: PredictAnswer) -> Result<(), Error> {
    event_channel::say(match answer {
        PredictAnswer::Ready => json!({ "event": "ready" }),
        PredictAnswer::Answered { request, gathered } => {
            let Gathered { path, rows, bytes, .. } = gathered;
            json!({ "event": "answered", "request": request, "path": path, "rows": rows, "bytes": bytes })
        }
        PredictAnswer::Refused { request, error } => {
            let (message, hint) = event_channel::parts(&error.to_string());
            let code = error.exit_code() as u8;
            json!({ "event": "refused", "request": request, "code": code, "message": message, "hint": hint })
        }
    });
    // Answers that nobody reads are not computed.
    if event_channel::is_open() { Ok(()) } else { Err(Error::Output(std::io::ErrorKind::BrokenPipe.into())) }
}
