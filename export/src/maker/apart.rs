//! Runtimes whose libraries are loaded into a process of their own: they print what they like, start threads, and may end it.

use super::{
    Limits, Made, Working,
    cause::Task,
    exchange::{self, Exchange},
    make, unix,
};
use crate::{
    ExportError, Runner,
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

/// A library of another's that runs artifacts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Library {
    OnnxRuntime,
    LiteRt,
    TensorFlow,
}

impl Library {
    /// Its name on a command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OnnxRuntime => "onnxruntime",
            Self::LiteRt => "litert",
            Self::TensorFlow => "tensorflow",
        }
    }

    /// Loads the library into this process, and an artifact with it. `threads`: of a call, 0 as
    /// many as it likes; only onnxruntime is told.
    ///
    /// # Errors
    /// A library that is not there, or what it says of the artifact.
    pub fn open(self, library: &Path, artifact: &Path, threads: usize) -> Result<Box<dyn Runner>, ExportError> {
        Ok(match self {
            Self::OnnxRuntime => Box::new(OrtRunner::load(artifact, Runtime { library, threads })?),
            Self::LiteRt => Box::new(LiteRt::load(library)?.open(artifact)?),
            Self::TensorFlow => Box::new(TensorFlow::load(library)?.open(artifact)?),
        })
    }

    /// Does the job that another process was started with by [`Library::start`] or [`convert`].
    ///
    /// # Errors
    /// As [`serve`].
    pub fn serve(self, (library, threads): (&Path, usize), from: impl BufRead, to: impl Write) -> io::Result<()> {
        let open = |artifact: &Path| self.open(library, artifact, threads);
        let convert = |onnx: &Path, out: &Path| ort::convert(onnx, out, library);
        exchange::serve(open, convert, from, to)
    }

    /// The same in a process of its own: `command` is a program that calls [`Library::serve`]. Inputs and outputs have these names, in
    /// their order; what is exchanged lies below `scratch`.
    ///
    /// # Errors
    /// As [`Library::open`]; a limit.
    pub fn start(
        self,
        command: Command,
        artifact: &Path,
        (inputs, outputs): (Vec<String>, Vec<String>),
        scratch: &Path,
        limits: Limits,
    ) -> Result<Exchange, ExportError> {
        let job = json!({ "artifact": artifact, "inputs": inputs });
        let mut working = self.begun(command, (artifact, None), job, limits)?;
        let version = working.ready()?;
        Exchange::new(working, version, (inputs, outputs), scratch)
    }

    fn begun(
        self,
        mut command: Command,
        (path, log): (&Path, Option<File>),
        job: Value,
        limits: Limits,
    ) -> Result<Working, ExportError> {
        // It needs no GPU, and words only where something is wrong.
        command.env("CUDA_VISIBLE_DEVICES", "").env("TF_CPP_MIN_LOG_LEVEL", "2");
        // From 1.32 on onnxruntime writes numbers of this machine and user into their directories, and sends them with what it does to its
        // maker, as soon as its environment is there: too soon for being told so by its interface.
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
        Working::start(command, (task, log), job).map_err(|source| ExportError::Io { path: program, source })
    }
}

/// Makes an `.ort` file of an `.onnx` file as [`ort::convert`] does, in a process of its own: `command` is a program that calls
/// [`Library::serve`] of onnxruntime's. Where it fails, what it said is in the file that [`log_of`](super::log_of) names.
///
/// # Errors
/// What onnxruntime says; a limit.
pub fn convert(command: Command, (onnx, out): (&Path, &Path), limits: Limits) -> Result<Made, ExportError> {
    make((onnx, out), json!({}), |job, log| Library::OnnxRuntime.begun(command, (onnx, Some(log)), job, limits))
}

impl FromStr for Library {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let all = [Self::OnnxRuntime, Self::LiteRt, Self::TensorFlow];
        let found = all.into_iter().find(|one| one.name() == name);
        found.ok_or_else(|| format!("{name}: expected onnxruntime, litert or tensorflow"))
    }
}
