//! The tools that make and run artifacts: libraries and environments where they were found, and a worker for libtorch's formats.

use super::{
    Artifact, EngineRunner, Pythons,
    limits::{makes, runs},
};
use enn_common::{config::train::Device, secrets, wire::engine::Engine};
use enn_export::{
    ExportError, Model, Ports, Runner, Target, litert,
    maker::{
        Made, aoti,
        apart::{self, Library},
        executorch::{self, Delegate},
        prepare::{self, Backend},
        tensorrt,
    },
    ort, savedmodel,
};
use enn_process::WorkerSpec;
use std::{
    path::{Path, PathBuf},
    process::Command,
};

#[derive(Debug, Clone)]
pub struct Tools {
    /// Worker for the formats that libtorch runs.
    pub worker: WorkerSpec,
    /// Places in which runtimes are searched: libraries, directories, Python environments.
    pub places: Vec<PathBuf>,
    /// Directory of environments that `enn export --prepare` made.
    pub environments: PathBuf,
    /// Interpreters for tools without a prepared environment, and the last place in which runtimes are searched.
    pub pythons: Pythons,
    /// This program, which runs crash-prone libraries in a process of its own; `None` in another program without it.
    pub enn: Option<PathBuf>,
    /// How to get this program, for a hint.
    pub get_enn: String,
}

/// Program that is started when no Python was found, so that the system reports the error.
const PYTHON: &str = "python3";

impl Tools {
    /// Makes an artifact from another by the target's own tool; `old` is a package whose code is reused instead of compiling anew.
    ///
    /// # Errors
    /// A tool is not installed, or any error of it.
    pub fn make(
        &self,
        target: Target,
        old: Option<&Path>,
        model: &Model<'_>,
        source: &Path,
        path: &Path,
    ) -> Result<Made, ExportError> {
        match target {
            Target::Ort => {
                let library = self.onnxruntime()?;
                match &self.enn {
                    Some(enn) => {
                        apart::convert(self.runtime(enn, Library::OnnxRuntime, &library), source, path, makes())
                    }
                    None => ort::convert(source, path, &library),
                }
            }
            Target::Aoti => {
                let python = self.environment(Backend::Aoti);
                let limits = makes();
                let device = if self.worker.device == Device::Cuda { "cuda" } else { "cpu" };
                match old {
                    Some(old) => aoti::replace(&python, source, path, old, limits),
                    None => aoti::compile(&python, source, path, device, limits),
                }
            }
            Target::Executorch => {
                let python = self.environment(Backend::ExecuTorch);
                executorch::lower(&python, source, path, Delegate::Xnnpack, makes())
            }
            Target::Tensorrt => {
                let python = tensorrt::TensorRtPython::new(self.environment(Backend::TensorRt));
                tensorrt::build(&python, model, source, path, makes())
            }
            Target::Onnx | Target::Pt2 | Target::Coreml | Target::Litert | Target::Tensorflow => Ok(Made::nothing()),
        }
    }

    /// Starts a runner of an artifact; `None` where only its structure can be checked. Exchanged files go below `scratch`.
    ///
    /// # Errors
    /// A runtime is not installed, or any error of it.
    pub fn runner(
        &self,
        target: Target,
        path: &Path,
        ports: &Ports,
        scratch: &Path,
    ) -> Result<Option<Box<dyn Runner>>, ExportError> {
        let engine = |engine: Engine| {
            let Ports { inputs, outputs } = ports.clone();
            let artifact = Artifact { engine, path: path.to_owned(), inputs, outputs };
            EngineRunner::start(&self.worker, artifact, scratch)
        };
        Ok(Some(match target {
            Target::Onnx | Target::Ort if self.enn.is_some() => {
                self.isolated(Library::OnnxRuntime, &self.onnxruntime()?, path, ports, scratch)?
            }
            Target::Onnx | Target::Ort => {
                let library = self.onnxruntime()?;
                let threads = self.worker.threads as usize;
                Box::new(ort::OrtRunner::load(path, ort::Runtime { library: &library, threads })?)
            }
            Target::Pt2 => Box::new(engine(Engine::Pt2)?),
            Target::Aoti => Box::new(engine(Engine::Aoti)?),
            Target::Executorch => {
                let python = self.environment(Backend::ExecuTorch);
                Box::new(executorch::start(&python, path, ports.clone(), scratch, runs())?)
            }
            Target::Tensorrt => {
                let python = tensorrt::TensorRtPython::new(self.environment(Backend::TensorRt));
                Box::new(tensorrt::start(&python, path, ports.clone(), scratch, runs())?)
            }
            Target::Coreml => return Ok(None),
            Target::Litert => {
                let library = litert::runtime::library(&self.places_of(Backend::LiteRt))?;
                self.isolated(Library::LiteRt, &library, path, ports, scratch)?
            }
            Target::Tensorflow => {
                let library = savedmodel::runtime::library(&self.places_of(Backend::TensorFlow))?;
                self.isolated(Library::TensorFlow, &library, path, ports, scratch)?
            }
        }))
    }

    /// Starts a runner in a library that has a process of its own: another enn.
    fn isolated(
        &self,
        whose: Library,
        library: &Path,
        path: &Path,
        ports: &Ports,
        scratch: &Path,
    ) -> Result<Box<dyn Runner>, ExportError> {
        let Some(enn) = &self.enn else {
            return Err(ExportError::Unavailable {
                what: "the program enn",
                why: "it was found neither here nor beside enn-worker".to_owned(),
                hint: self.get_enn.clone(),
            });
        };
        Ok(Box::new(whose.start(self.runtime(enn, whose, library), path, ports.clone(), scratch, runs())?))
    }

    /// Returns the command of another enn that loads a library.
    fn runtime(&self, enn: &Path, whose: Library, library: &Path) -> Command {
        let mut command = secrets::command(enn);
        command.arg("runtime").arg(whose.name()).arg(library);
        command.arg("--threads").arg(self.worker.threads.to_string());
        command
    }

    /// Returns the backend whose environment makes or checks a format; `None` for one that needs none.
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

    /// Returns where a backend's libraries may lie: the given places, then the prepared environment, then the user's own Python.
    fn places_of(&self, backend: Backend) -> Vec<PathBuf> {
        let prepared = prepare::prepared(backend, &self.environments);
        let environment = prepared.as_deref().and_then(Path::parent).and_then(Path::parent).map(Path::to_owned);
        self.places.iter().cloned().chain(environment).chain(self.pythons.places()).collect()
    }

    /// Returns the interpreter of a backend's environment, or of the user's own that has what it needs: it reports itself what it lacks.
    fn environment(&self, backend: Backend) -> PathBuf {
        let prepared = prepare::prepared(backend, &self.environments);
        prepared.or_else(|| self.pythons.for_tools(backend)).unwrap_or_else(|| PathBuf::from(PYTHON))
    }
}
