//! Runtimes whose libraries are loaded into a process of their own: they print what they like, start threads, and may end it.

use super::{
    Limits, Reply, Working,
    child::{Child, Errors},
    exchange::Exchange,
    unix,
};
use crate::{
    ExportError, Runner,
    litert::runtime::LiteRt,
    ort::{OrtRunner, Runtime},
    savedmodel::runtime::TensorFlow,
};
use serde_json::json;
use std::{path::Path, process::Command, str::FromStr};

/// A library of another's that runs artifacts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Library {
    /// onnxruntime's.
    OnnxRuntime,
    /// LiteRT's.
    LiteRt,
    /// TensorFlow's.
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

    const fn what(self) -> &'static str {
        match self {
            Self::OnnxRuntime => "onnxruntime",
            Self::LiteRt => "LiteRT",
            Self::TensorFlow => "TensorFlow",
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

    /// The same in a process of its own: `command` is a program that calls [`serve`](super::exchange::serve) with it. Inputs and
    /// outputs have these names, in their order; what is exchanged lies below `scratch`.
    ///
    /// # Errors
    /// As [`Library::open`]; a limit.
    pub fn start(
        self,
        mut command: Command,
        artifact: &Path,
        (inputs, outputs): (Vec<String>, Vec<String>),
        scratch: &Path,
        limits: Limits,
    ) -> Result<Exchange, ExportError> {
        // A check needs no GPU, and words only where something is wrong.
        command.env("CUDA_VISIBLE_DEVICES", "").env("TF_CPP_MIN_LOG_LEVEL", "2");
        let what = self.what();
        unix::bind(&mut command);
        let program = command.get_program().to_owned();
        let child =
            Child::start(command, Errors::Kept).map_err(|source| ExportError::Io { path: program.into(), source })?;
        let mut working = Working { what, child, time: limits.time, path: artifact.to_owned() };
        working.say(&json!({ "artifact": artifact, "inputs": inputs }))?;
        match working.hear()? {
            Reply::Ready(version) => Exchange::new(working, version, (inputs, outputs), scratch),
            other => Err(working.refused(format!("it said {other:?} before it was asked"))),
        }
    }
}

impl FromStr for Library {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let all = [Self::OnnxRuntime, Self::LiteRt, Self::TensorFlow];
        let found = all.into_iter().find(|one| one.name() == name);
        found.ok_or_else(|| format!("{name}: expected onnxruntime, litert or tensorflow"))
    }
}
