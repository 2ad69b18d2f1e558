//! Who makes an artifact of another, and who runs one: libraries and environments where they were found, and a worker for libtorch's own.

use crate::{
    agent::WorkerSpec,
    api::{Artifact, EngineRunner},
};
use enn_common::wire::engine::Engine;
use enn_export::{Batch, ExportError, Runner, Target, coreml, ort};
use std::{collections::BTreeMap, path::{Path, PathBuf}};

/// What artifacts are made and run with.
#[derive(Debug, Clone)]
pub struct Tools {
    /// For what libtorch runs.
    pub worker: WorkerSpec,
    /// Where libraries are looked for: files, directories, environments of Python.
    pub places: Vec<PathBuf>,
    /// Directory of environments that `enn export --prepare` made.
    pub environments: PathBuf,
    /// Threads of a runtime.
    pub threads: usize,
}

/// Names of the inputs and outputs, in the graph's order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ports {
    /// Inputs.
    pub inputs: Vec<String>,
    /// Outputs.
    pub outputs: Vec<String>,
}

/// What a tool says of what it made.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Made {
    /// Of the tool and what it stands on.
    pub versions: BTreeMap<String, String>,
    /// Of the artifact, e.g. for which instruction set its code is.
    pub notes: BTreeMap<String, String>,
}
