//! Who makes an artifact of another, and who runs one: libraries and environments where they were found, and a worker for libtorch's own.

use super::{Artifact, EngineRunner, Pythons};
use crate::agent::WorkerSpec;
use enn_common::{config::train::Device, fs::memory, secrets, wire::engine::Engine};
use enn_export::{
    ExportError, Model, Runner, Target, litert,
    maker::{
        Limits, Made, aoti,
        apart::{self, Library},
        executorch::{self, Delegate},
        prepare::{self, Backend},
        tensorrt,
    },
    ort, savedmodel,
};
use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

/// What artifacts are made and run with.
#[derive(Debug, Clone)]
pub struct Tools {
    /// For what libtorch runs.
    pub worker: WorkerSpec,
    /// Where runtimes are looked for: libraries, directories, environments of Python.
    pub places: Vec<PathBuf>,
    /// Directory of environments that `enn export --prepare` made.
    pub environments: PathBuf,
    /// Of tools that no environment was made for, and where runtimes are looked for last.
    pub pythons: Pythons,
    /// This program, which runs what may bring it down in a process of its own; `None` in another program without it.
    pub enn: Option<PathBuf>,
}

/// What is started where no Python was found, so that the system says so.
const PYTHON: &str = "python3";
/// Longest time to load an artifact, and to answer until another is set.
const RUNS_TIME_MAX: Duration = Duration::from_secs(600);
/// Memory that everyone may ask for, bytes, however little is free: libraries ask for more than they use.
const MEMORY_BYTES_LEAST: u64 = 4 << 30;

/// What makes an artifact may take: no memory that others would have to give up.
fn makes() -> Limits {
    let free = memory::available_bytes().unwrap_or(Limits::MAKES.memory_bytes);
    Limits { memory_bytes: free.max(MEMORY_BYTES_LEAST), ..Limits::MAKES }
}

/// What runs one may take.
pub(super) fn runs() -> Limits {
    Limits { time: RUNS_TIME_MAX, ..makes() }
}

/// Names of the inputs and outputs, in the graph's order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ports {
    pub inputs: Vec<String>,
    pub outputs: Vec<String>,
}

impl Tools {
    /// Makes an artifact of another by its own tool; `old` is a package whose code is taken instead of compiling anew.
    ///
    /// # Errors
    /// A tool that is not there, or what it says.
    pub fn make(
        &self,
        (target, old): (Target, Option<&Path>),
        model: &Model<'_>,
        (source, path): (&Path, &Path),
    ) -> Result<Made, ExportError> {
        match target {
            Target::Ort => {
                let library = self.onnxruntime()?;
                match &self.enn {
                    Some(enn) => {
                        let command = self.runtime(enn, Library::OnnxRuntime, &library);
                        apart::convert(command, (source, path), makes())
                    }
                    None => ort::convert(source, path, &library),
                }
            }
            Target::Aoti => {
                let python = self.environment(Backend::Aoti);
                let limits = makes();
                let device = if self.worker.device == Device::Cuda { "cuda" } else { "cpu" };
                match old {
                    Some(old) => aoti::replace(&python, (source, path), old, limits),
                    None => aoti::compile(&python, (source, path), device, limits),
                }
            }
            Target::Executorch => {
                let python = self.environment(Backend::ExecuTorch);
                executorch::lower(&python, (source, path), Delegate::Xnnpack, makes())
            }
            Target::Tensorrt => {
                let python = tensorrt::Python::new(self.environment(Backend::TensorRt));
                tensorrt::build(&python, model, (source, path), makes())
            }
            Target::Onnx | Target::Pt2 | Target::Coreml | Target::Litert | Target::Tensorflow => Ok(Made::nothing()),
        }
    }

    /// An artifact at work; `None` where nothing but its structure can be looked at. What is exchanged goes below `scratch`.
    ///
    /// # Errors
    /// A runtime that is not there, or what it says of the artifact.
    pub fn runner(
        &self,
        target: Target,
        (path, ports): (&Path, &Ports),
        scratch: &Path,
    ) -> Result<Option<Box<dyn Runner>>, ExportError> {
        let engine = |engine: Engine| {
            let inputs = ports.inputs.clone();
            let outputs = ports.outputs.clone();
            let artifact = Artifact { engine, path: path.to_owned(), inputs, outputs };
            EngineRunner::start(&self.worker, artifact, scratch)
        };
        Ok(Some(match target {
            Target::Onnx | Target::Ort if self.enn.is_some() => {
                self.apart(Library::OnnxRuntime, &self.onnxruntime()?, (path, ports), scratch)?
            }
            Target::Onnx | Target::Ort => {
                let library = self.onnxruntime()?;
                let threads = self.worker.threads as usize;
                Box::new(ort::OrtRunner::load(path, ort::Runtime { library: &library, threads })?)
            }
            Target::Pt2 => Box::new(engine(Engine::Pt2)?),
            Target::Aoti => Box::new(engine(Engine::Aoti)?),
            Target::Executorch => Box::new(executorch::start(
                &self.environment(Backend::ExecuTorch),
                path,
                (ports.inputs.clone(), ports.outputs.clone()),
                scratch,
                runs(),
            )?),
            Target::Tensorrt => Box::new(tensorrt::start(
                &tensorrt::Python::new(self.environment(Backend::TensorRt)),
                path,
                (ports.inputs.clone(), ports.outputs.clone()),
                scratch,
                runs(),
            )?),
            Target::Coreml => return Ok(None),
            Target::Litert => {
                let library = litert::runtime::library(&self.places_of(Backend::LiteRt))?;
                self.apart(Library::LiteRt, &library, (path, ports), scratch)?
            }
            Target::Tensorflow => {
                let library = savedmodel::runtime::library(&self.places_of(Backend::TensorFlow))?;
                self.apart(Library::TensorFlow, &library, (path, ports), scratch)?
            }
        }))
    }

    /// An artifact in a library that has a process of its own: another enn.
    fn apart(
        &self,
        whose: Library,
        library: &Path,
        (path, ports): (&Path, &Ports),
        scratch: &Path,
    ) -> Result<Box<dyn Runner>, ExportError> {
        let Some(enn) = &self.enn else {
            return Err(ExportError::Unavailable {
                what: "the program enn",
                why: "it was found neither here nor beside enn-worker".to_owned(),
                hint: "`make build` builds both".to_owned(),
            });
        };
        let names = (ports.inputs.clone(), ports.outputs.clone());
        Ok(Box::new(whose.start(self.runtime(enn, whose, library), path, names, scratch, runs())?))
    }

    /// Another enn, for a library.
    fn runtime(&self, enn: &Path, whose: Library, library: &Path) -> Command {
        let mut command = secrets::command(enn);
        command.arg("runtime").arg(whose.name()).arg(library);
        command.arg("--threads").arg(self.worker.threads.to_string());
        command
    }

    /// Whose environment a format is made or checked with; `None` for one that needs none.
    pub const fn backend(target: Target) -> Option<Backend> {
        Some(match target {
            Target::Onnx | Target::Ort => Backend::OnnxRuntime,
            Target::Aoti => Backend::Aoti,
            Target::Executorch => Backend::ExecuTorch,
            Target::Tensorrt => Backend::TensorRt,
            Target::Litert => Backend::LiteRt,
            Target::Tensorflow => Backend::TensorFlow,
            Target::Pt2 | Target::Coreml => return None,
        })
    }

    fn onnxruntime(&self) -> Result<PathBuf, ExportError> {
        ort::find::library(&self.places_of(Backend::OnnxRuntime))
    }

    /// Where a backend's libraries may lie: what was named, then the environment that was made for it, then the user's own Python.
    fn places_of(&self, backend: Backend) -> Vec<PathBuf> {
        let prepared = prepare::prepared(backend, &self.environments);
        let environment = prepared.as_deref().and_then(Path::parent).and_then(Path::parent).map(Path::to_owned);
        self.places.iter().cloned().chain(environment).chain(self.pythons.places()).collect()
    }

    /// The interpreter of a backend's environment, or of the user's own that has what it needs: it says itself what it lacks.
    fn environment(&self, backend: Backend) -> PathBuf {
        let prepared = prepare::prepared(backend, &self.environments);
        prepared.or_else(|| self.pythons.for_tools(backend)).unwrap_or_else(|| PathBuf::from(PYTHON))
    }
}
