//! `enn export`.

use super::{flags::Runs, output};
use crate::{
    Error,
    api::{self, ExportOptions, Exported},
    error::Usage,
    export,
    facts::Facts,
};
use enn_common::{config::train::Device, exit::ExitCode};
use enn_export::{Batch, Precision, Target};
use enn_process::{STOP_SIGNALS, Signals, end_children, next_signal, wait_ready};
use enn_ui::message;
use enn_ui::runs::Need;
use nix::{
    poll::{PollFd, PollFlags},
    sys::signal::Signal,
};
use std::{
    io,
    ops::ControlFlow,
    os::fd::AsFd,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::{Duration, Instant},
};

/// Time between two attempts to end child processes.
const STOP_REST: Duration = Duration::from_millis(50);

/// Write a run's best model for other runtimes, and check each file by running it there
///
/// Pre- and post-processing are included: inputs are columns, and outputs are predictions in their own units. Next to each artifact are
/// ARTIFACT.json, which describes inputs, outputs and the check, and programs that run it: ARTIFACT.usage.py, for some formats also .cpp
/// and .rs.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Run: its directory, its name, the beginning of its name, its address, or "latest"
    #[arg(value_name = "RUN", help_heading = "Job", required_unless_present = "prepare")]
    run: Option<String>,
    /// Formats, with commas: onnx, ort, pt2, aoti, executorch, tensorrt, coreml, litert, tensorflow
    #[arg(
        long,
        value_name = "FORMATS",
        value_delimiter = ',',
        required_unless_present = "prepare",
        help_heading = "Job"
    )]
    to: Vec<Target>,
    /// Directory of the artifacts; what is there of the same name is replaced
    #[arg(long, value_name = "DIR", default_value = "export", help_heading = "Job")]
    out: PathBuf,
    /// Name of the artifacts [default: the run's]
    #[arg(long, value_name = "NAME", help_heading = "Job")]
    name: Option<String>,
    /// Output the quantiles of the loss too
    #[arg(long, help_heading = "Job")]
    quantiles: bool,
    /// Make the state of a stream an input and an output
    #[arg(long, help_heading = "Job")]
    stream: bool,
    /// Rows of one call: fewest, what compilers tune for, most
    #[arg(long, value_name = "MIN:OPT:MAX", default_value = "1:64:4096", value_parser = call_rows, help_heading = "Job")]
    batch: Batch,
    /// Format of weights and products: fp32, fp16, bf16; operations without half precision stay in fp32
    #[arg(long, value_name = "PRECISION", default_value = "fp32", help_heading = "Job")]
    precision: Precision,
    /// Compile for: cpu or cuda; aoti only
    #[arg(long, value_name = "DEVICE", default_value = "cpu", value_parser = ["cpu", "cuda"], help_heading = "Job")]
    device: String,
    /// Take the code of this package of the same program, made by aoti for cpu, and give it this run's weights: seconds instead of minutes
    #[arg(long, value_name = "OLD.aoti.pt2", help_heading = "Job")]
    code_of: Option<PathBuf>,
    /// Publish also artifacts that cannot be checked here or fail the check, marked as unverified
    #[arg(long, help_heading = "Job")]
    unverified: bool,
    /// Install what these formats need to be made and checked: onnx, aoti, executorch, litert, tensorflow, tensorrt
    #[arg(long, value_name = "FORMATS", value_delimiter = ',', help_heading = "Tools")]
    prepare: Vec<Target>,
    #[command(flatten)]
    runs: Runs,
    /// One JSON document
    #[arg(long, help_heading = "Display")]
    json: bool,
}

/// Parses the value of --batch.
fn call_rows(text: &str) -> Result<Batch, String> {
    let parts: Result<Vec<u64>, _> = text.split(':').map(str::parse).collect();
    match parts.as_deref() {
        Ok(&[min, opt, max]) if 1 <= min && min <= opt && opt <= max => Ok(Batch { min, opt, max }),
        _ => Err("expected MIN:OPT:MAX, three numbers from 1 on that do not fall, e.g. 1:64:4096".to_owned()),
    }
}

pub(super) fn run(args: &Args, facts: &Facts) -> Result<ExitCode, Error> {
    for target in &args.prepare {
        let mut tell = |line: &str| message::print(&format!("{}: {line}", target.name()));
        match api::prepare_export(*target, facts, &mut tell)? {
            Some(python) => tell(&format!("ready, {}", python.display())),
            None => tell("needs nothing"),
        }
    }
    let Some(run) = &args.run else { return Ok(ExitCode::Success) };
    if args.to.is_empty() {
        return Err(Error::Usage(Usage::NothingToExport));
    }
    if args.code_of.is_some() && (!args.to.contains(&Target::Aoti) || args.device != "cpu") {
        return Err(Error::Usage(Usage::CodeOfWhat));
    }
    let run = args.runs.find(run, Need::Model, facts)?;
    let options = ExportOptions {
        targets: args.to.clone(),
        name: args.name.clone(),
        batch: args.batch,
        quantiles: args.quantiles,
        stream: args.stream,
        unverified: args.unverified,
        precision: args.precision,
        code_of: args.code_of.as_ref().map(|path| facts.cwd.join(path)),
        device: if args.device == "cuda" { Device::Cuda } else { Device::Cpu },
    };
    let on_exported = |exported: &Exported| {
        if !args.json {
            let _gone = output::text_line(&export::line(exported));
        }
    };
    let done = match until_signal(&facts.cwd.join(run), &args.out, facts, &options, &on_exported)? {
        Ok(done) => done,
        Err(Signal::SIGINT) => return Ok(ExitCode::Interrupted),
        Err(_) => return Ok(ExitCode::Terminated),
    };
    if args.json {
        output::json(&export::json(&done))?;
    }
    let failed = done.iter().any(|exported| exported.outcome.is_err());
    Ok(if failed { ExitCode::Artifact } else { ExitCode::Success })
}

/// Exports until done or until a signal: then running tools are ended and unfinished artifacts are removed; returns the signal.
fn until_signal(
    run: &Path,
    out: &Path,
    facts: &Facts,
    options: &ExportOptions,
    on_exported: &(dyn Fn(&Exported) + Sync),
) -> Result<Result<Vec<Exported>, Signal>, Error> {
    let stopped = AtomicBool::new(false);
    let goes_on = ControlFlow::Continue(());
    let mut until_stopped = |exported: &Exported| {
        if stopped.load(Relaxed) {
            return ControlFlow::Break(());
        }
        on_exported(exported);
        goes_on
    };
    let Some(mut signals) = Signals::install(&STOP_SIGNALS).map_err(Error::Output)? else {
        return api::export(run, out, facts, options, &mut until_stopped).map(Ok);
    };
    let (ended, end) = io::pipe().map_err(Error::Output)?;
    std::thread::scope(|scope| {
        let work = scope.spawn(move || {
            let done = api::export(run, out, facts, options, &mut until_stopped);
            drop(end);
            done
        });
        let signal = next_signal(&mut signals, Some(&ended)).map_err(Error::Output)?;
        stopped.store(true, Relaxed);
        // Ending the children ends the wait for them; children that are started afterwards are ended as well.
        while signal.is_some() && !work.is_finished() {
            end_children();
            let mut over = [PollFd::new(ended.as_fd(), PollFlags::POLLIN)];
            wait_ready(&mut over, Some(Instant::now() + STOP_REST)).map_err(Error::Output)?;
        }
        let done = work.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        signal.map_or_else(|| done.map(Ok), |signal| Ok(Err(signal)))
    })
}
