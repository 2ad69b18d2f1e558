//! Runtimes whose libraries run in a process of their own: they print, start threads, and may crash it.

use super::{
    Limits, Made,
    cause::Task,
    exchange::{self, Exchange},
    tool::make,
    unix,
    working::Working,
};
use crate::{
    ExportError, Ports, Runner,
    litert::runtime::LiteRt,
    ort::{self, OrtRunner, Runtime},
    savedmodel::runtime::TensorFlow,
};
use serde_json::{Value, json};
use std::{
    fs::File,
    io::{self, BufRead, Write},
    path::{Path, PathBuf},
    process::Command,
    str::FromStr,
};

/// A third-party library that runs artifacts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Library {
    OnnxRuntime,
    LiteRt,
    TensorFlow,
}

impl Library {
    /// Returns the name on a command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OnnxRuntime => "onnxruntime",
            Self::LiteRt => "litert",
            Self::TensorFlow => "tensorflow",
        }
    }

    /// Loads the library into this process, and an artifact with it. `threads`: threads of a call, 0 for the library's default; only
    /// onnxruntime uses it.
    ///
    /// # Errors
    /// The library is not installed, or any error of it.
    pub fn open(self, library: &Path, artifact: &Path, threads: usize) -> Result<Box<dyn Runner>, ExportError> {
        Ok(match self {
            Self::OnnxRuntime => Box::new(OrtRunner::load(artifact, Runtime { library, threads })?),
            Self::LiteRt => Box::new(LiteRt::load(library)?.open(artifact)?),
            Self::TensorFlow => Box::new(TensorFlow::load(library)?.open(artifact)?),
        })
    }

    /// Does the job for which another process was started by [`Library::start`] or [`convert`].
    ///
    /// # Errors
    /// As [`exchange::serve`].
    pub fn serve(self, library: &Path, threads: usize, from: impl BufRead, to: impl Write) -> io::Result<()> {
        let open = |artifact: &Path| self.open(library, artifact, threads);
        let convert = |onnx: &Path, out: &Path| ort::convert(onnx, out, library);
        exchange::serve(open, convert, from, to)
    }

    /// Loads an artifact in a process of its own: `command` is a program that calls [`Library::serve`]. Exchanged files lie below
    /// `scratch`.
    ///
    /// # Errors
    /// As [`Library::open`]; a limit is exceeded.
    pub fn start(
        self,
        command: Command,
        artifact: &Path,
        ports: Ports,
        scratch: &Path,
        limits: Limits,
    ) -> Result<Exchange, ExportError> {
        let job = json!({ "artifact": artifact, "inputs": ports.inputs });
        let mut working = self.start_process(command, artifact, None, job, limits)?;
        let version = working.ready()?;
        Exchange::new(working, version, ports, scratch)
    }

    fn start_process(
        self,
        mut command: Command,
        path: &Path,
        log: Option<File>,
        job: Value,
        limits: Limits,
    ) -> Result<Working, ExportError> {
        // The process needs no GPU, and logs errors only.
        command.env("CUDA_VISIBLE_DEVICES", "").env("TF_CPP_MIN_LOG_LEVEL", "2");
        // From 1.32 on onnxruntime sends telemetry about this machine and user as soon as its environment exists: too early for its interface
        // to disable it.
        command.env("ORT_DISABLE_TELEMETRY", "1");
        unix::bind(&mut command);
        let (what, format, other) = match self {
            Self::OnnxRuntime => ("onnxruntime", "onnx", "pt2"),
            Self::LiteRt => ("LiteRT", "litert", "onnx"),
            Self::TensorFlow => ("TensorFlow", "tensorflow", "onnx"),
        };
        let lacks = format!("`enn export --prepare {format}` installs it where enn finds it");
        let task = Task { what, path: path.to_owned(), limits, lacks, other };
        let program = PathBuf::from(command.get_program());
        Working::start(command, task, log, job).map_err(ExportError::io(&program))
    }
}

/// Makes an `.ort` file of an `.onnx` file as [`ort::convert`] does, in a process of its own: `command` is a program that calls
/// [`Library::serve`] of onnxruntime. Where it fails, its output is in the file that [`log_of`](super::log_of) names.
///
/// # Errors
/// Any error of onnxruntime; a limit is exceeded.
pub fn convert(command: Command, onnx: &Path, out: &Path, limits: Limits) -> Result<Made, ExportError> {
    make(onnx, out, json!({}), |job, log| Library::OnnxRuntime.start_process(command, onnx, Some(log), job, limits))
}

impl FromStr for Library {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let all = [Self::OnnxRuntime, Self::LiteRt, Self::TensorFlow];
        let found = all.into_iter().find(|one| one.name() == name);
        found.ok_or_else(|| format!("{name}: expected onnxruntime, litert or tensorflow"))
    }
}
