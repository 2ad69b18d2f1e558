//! `enn serve`.

use super::{
    flags::{Changes, Runs, artifact_or_run},
    output,
};
use crate::{
    Error,
    api::{self, ServeOptions},
    facts::Facts,
};
use enn_common::{config::train::Precision, exit::ExitCode};
use enn_serve::Limits;
use enn_ui::{message, metrics_server};
use nix::sys::signal::Signal;
use serde_json::json;
use std::{path::PathBuf, time::Duration};

/// Answer requests for predictions over HTTP with a trained run's best weights, or with an exported model
///
/// POST /predict takes rows as JSON, {"rows": [{"COLUMN": VALUE, …}, …]}, or as an Arrow IPC stream, and answers in kind. GET / says
/// what the columns are, with a command line to try; GET /health whether workers are up; GET /metrics is for Prometheus.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Run: its directory, its name, the beginning of its name, its address, or "latest"; or a file of `enn export` with its ARTIFACT.json beside it
    ///
    /// An exported model reads rows as its run does, and computes in its own runtime: onnx, ort, pt2, aoti, executorch, tensorrt, litert or
    /// tensorflow.
    #[arg(value_name = "RUN|ARTIFACT", help_heading = "Job")]
    model: String,
    /// Number format of the encoder: auto, fp32, tf32, bf16, fp16 or fp8; the heads always compute in fp32
    #[arg(long, value_name = "FORMAT", default_value = "fp32", help_heading = "Job")]
    precision: Precision,
    /// Keep streams: POST /streams begins one, and each row of it is answered after those before
    ///
    /// What a temporal model carries from row to row stays on the server. An exported model that carries a state serves streams anyway.
    #[arg(long, help_heading = "Job")]
    stream: bool,
    #[command(flatten)]
    runs: Runs,
    #[command(flatten)]
    changes: Changes,
    /// Where to listen: a port of the loopback address, or HOST:PORT; 0 takes a free port
    #[arg(long, value_name = "[HOST:]PORT", default_value = "8000", help_heading = "Server")]
    addr: String,
    /// File with the secret that clients send as Authorization: Bearer SECRET; needed where others can reach the address
    #[arg(long, value_name = "FILE", help_heading = "Server")]
    token_file: Option<PathBuf>,
    /// Worker processes; one that ends is replaced
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256), help_heading = "Server")]
    workers: u32,
    /// Seconds to finish open requests after Ctrl-C or SIGTERM
    #[arg(long, value_name = "SECONDS", default_value_t = 30, help_heading = "Server")]
    grace: u64,
    /// Rows that are computed together at most
    #[arg(long, value_name = "ROWS", default_value_t = Limits::default().batch_rows_max, help_heading = "Limits")]
    batch_rows: usize,
    /// Milliseconds to wait for more requests to compute together; those that come while workers compute are anyway
    #[arg(long, value_name = "MS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=10_000), help_heading = "Limits")]
    batch_wait: u64,
    /// Requests that wait at most; more are answered 429
    #[arg(long, value_name = "N", default_value_t = Limits::default().queue_max, help_heading = "Limits")]
    queue: usize,
    /// Largest body, MiB; larger ones are answered 413, and those that unpack to more than twice as much, where that is more than 64 MiB
    #[arg(long, value_name = "MIB", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024), help_heading = "Limits")]
    body: u16,
    /// Connections at a time; an idle one makes room for another, else it is answered 503
    #[arg(long, value_name = "N", default_value_t = Limits::default().connections_max, help_heading = "Limits")]
    connections: usize,
    /// Seconds for an answer, waiting included; then it is answered 504, and a worker that computed for so long is replaced
    #[arg(long, value_name = "SECONDS", default_value_t = Limits::default().answer_wait.as_secs(), value_parser = clap::value_parser!(u64).range(1..), help_heading = "Limits")]
    timeout: u64,
    /// Streams at a time; more are answered 429
    #[arg(long, value_name = "N", default_value_t = Limits::default().streams_max, help_heading = "Limits")]
    streams: usize,
    /// Seconds after which an unused stream is closed
    #[arg(long, value_name = "SECONDS", default_value_t = Limits::default().stream_idle_max.as_secs(), value_parser = clap::value_parser!(u64).range(1..), help_heading = "Limits")]
    stream_idle: u64,
    /// Print where it listens as JSON
    #[arg(long, help_heading = "Output")]
    json: bool,
}

pub(super) fn run(args: &Args, facts: &Facts) -> Result<ExitCode, Error> {
    let model = artifact_or_run(&args.model, &args.runs, facts)?;
    let bytes = usize::from(args.body) << 20;
    let limits = Limits {
        batch_rows_max: args.batch_rows.max(1),
        batch_wait: Duration::from_millis(args.batch_wait),
        queue_max: args.queue.max(1),
        body_bytes_max: bytes,
        unpacked_bytes_max: Limits::default().unpacked_bytes_max.max(2 * bytes),
        bodies_bytes_max: Limits::default().bodies_bytes_max.max(4 * bytes),
        connections_max: args.connections.max(1),
        answer_wait: Duration::from_secs(args.timeout),
        streams_max: args.streams.max(1),
        stream_idle_max: Duration::from_secs(args.stream_idle),
        ..Limits::default()
    };
    let options = ServeOptions {
        address: metrics_server::address(&args.addr)?,
        token_file: args.token_file.clone(),
        limits,
        workers: args.workers,
        grace: Duration::from_secs(args.grace),
        precision: args.precision,
        stream: args.stream,
        overrides: args.changes.overrides(),
    };
    let served = api::serve(&model, facts, &options, &mut |server| {
        let address = server.address();
        let example = server.example();
        let json = json!({"address": address.to_string(), "url": format!("http://{address}"), "curl": example});
        output::print(args.json, &json, || format!("http://{address}\n\n{example}"))
    })?;
    let drained = served.drained;
    message::print(&format!("{} requests were finished, {} cut off", drained.finished, drained.cut));
    Ok(if served.signal == Signal::SIGINT { ExitCode::Interrupted } else { ExitCode::Terminated })
}
