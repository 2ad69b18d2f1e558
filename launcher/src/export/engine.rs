//! PT2 archives and packages of AOTInductor in a worker process of their own (`enn_common::wire::engine`): a crash of libtorch
//! there is an error here.

use super::limits;
use crossbeam_channel::Receiver;
use enn_common::{
    fs::atomic,
    wire::{
        engine::{Engine, EngineQuestion, EngineReply, EngineSetup},
        message::PROTOCOL,
    },
};
use enn_export::{ExportError, Runner, Tensor, maker::cause::Task, pt2::check};
use enn_process::{
    WorkerSpec,
    piped::{PipeError, Piped},
};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    time::Duration,
};

/// Names what a libtorch lacks that runs no archives, and what can be done without it.
const UNAVAILABLE: &str = "libtorch's interpreter of PT2 archives";
const INSTEAD: &str = "export the run as onnx; or with --unverified as it is: `torch.export.load` of PyTorch loads it";

/// An artifact, with the names of its inputs and outputs in their order.
#[derive(Debug, Clone)]
pub struct Artifact {
    pub engine: Engine,
    pub path: PathBuf,
    pub inputs: Vec<String>,
    pub outputs: Vec<String>,
}

/// A worker with an artifact loaded.
#[derive(Debug)]
pub struct EngineRunner {
    worker: Piped<EngineReply>,
    artifact: Artifact,
    task: Task,
    scratch: PathBuf,
    version: String,
    about: BTreeMap<String, String>,
}

impl EngineRunner {
    /// Loads an artifact; an archive is checked first. Exchanged files lie in a directory of its own below `beside`, which is removed
    /// with the worker.
    ///
    /// # Errors
    /// The archive is invalid, or any error of libtorch.
    pub fn start(worker: &WorkerSpec, artifact: Artifact, beside: &Path) -> Result<Self, ExportError> {
        if artifact.engine == Engine::Pt2 {
            check::check(&artifact.path)?;
        }
        let scratch = atomic::temporary(&beside.join("engine"));
        DirBuilder::new().recursive(true).mode(0o700).create(&scratch).map_err(ExportError::io(&scratch))?;
        let started = Piped::start(worker, "--engine", &scratch).map_err(|error| match error {
            PipeError::Start(source) => source,
            other => io::Error::other(other),
        });
        let mut piped = started.map_err(ExportError::io(&worker.program))?;
        let path = artifact.path.clone();
        let limits = limits::runs();
        let lacks = "let ENN_WORKER name a worker of this enn's version".to_owned();
        let task = Task { what: "libtorch", path, limits, lacks, other: "onnx" };
        let begin = EngineSetup {
            protocol: PROTOCOL,
            engine: artifact.engine,
            artifact: artifact.path.clone(),
            // Archives run on the CPU, whatever the worker has.
            device: if artifact.engine == Engine::Pt2 { "cpu".to_owned() } else { worker.device_name().to_owned() },
            threads: worker.threads,
            memory_bytes: Some(limits.memory_bytes),
            scratch: scratch.clone(),
        };
        match ask(&mut piped, &begin, &task)? {
            EngineReply::Ready { version, about } => {
                Ok(Self { worker: piped, artifact, task, scratch, version, about })
            }
            EngineReply::Unavailable { why } => {
                Err(ExportError::Unavailable { what: UNAVAILABLE, why, hint: INSTEAD.to_owned() })
            }
            other => Err(task.refused(format!("the worker sent {other:?} before any question"))),
        }
    }

    /// Returns the artifact's own metadata, e.g. the instruction set for which it was compiled.
    pub const fn about(&self) -> &BTreeMap<String, String> {
        &self.about
    }

    fn write(&self, inputs: &[Tensor], path: &Path) -> Result<(), ExportError> {
        let bytes = |tensor: &Tensor| tensor.values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        let mut ports = Vec::with_capacity(inputs.len());
        for (number, name) in self.artifact.inputs.iter().enumerate() {
            let input = Tensor::named(inputs, name).map_err(|why| self.task.refused(why))?;
            ports.push((number.to_string(), input.shape.clone(), bytes(input)));
        }
        let views: Result<Vec<_>, _> = ports
            .iter()
            .map(|(name, shape, bytes)| Ok((name, TensorView::new(Dtype::F32, shape.clone(), bytes)?)))
            .collect();
        let written = views.and_then(|views| safetensors::serialize_to_file(views, None, path));
        written.map_err(|error| ExportError::io(path)(io::Error::other(error)))
    }

    fn read(&self, path: &Path) -> Result<Vec<Tensor>, ExportError> {
        let bytes = fs::read(path).map_err(ExportError::io(path))?;
        let wrong = |why: String| self.task.refused(why);
        let found = SafeTensors::deserialize(&bytes).map_err(|error| wrong(format!("its outputs: {error}")))?;
        let expected = self.artifact.outputs.len();
        if found.len() != expected {
            return Err(wrong(format!("it has {} outputs, expected {expected}", found.len())));
        }
        let one = |(number, name): (usize, &String)| {
            let view = found.tensor(&number.to_string()).map_err(|error| wrong(format!("output {name}: {error}")))?;
            if view.dtype() != Dtype::F32 {
                return Err(wrong(format!("output {name} is {:?}, expected F32", view.dtype())));
            }
            let values = view.data().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
            Ok(Tensor { name: name.clone(), shape: view.shape().to_vec(), values })
        };
        self.artifact.outputs.iter().enumerate().map(one).collect()
    }
}

impl Runner for EngineRunner {
    fn version(&self) -> String {
        format!("libtorch {}", self.version)
    }

    fn set_time(&mut self, time: Duration) {
        self.worker.set_wait(time);
    }

    fn ended(&self) -> Receiver<()> {
        self.worker.ended().clone()
    }

    fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, ExportError> {
        let given = self.scratch.join("inputs");
        let answered = self.scratch.join("outputs");
        self.write(inputs, &given)?;
        let question = EngineQuestion { inputs: given, outputs: answered.clone() };
        match ask(&mut self.worker, &question, &self.task)? {
            EngineReply::Answered => self.read(&answered),
            other => Err(self.task.refused(format!("the worker sent {other:?} instead of an answer"))),
        }
    }
}

impl Drop for EngineRunner {
    fn drop(&mut self) {
        // The worker removes the directory, too: whichever is first.
        let _ = fs::remove_dir_all(&self.scratch);
    }
}

/// Sends a line and receives the reply; a worker that has ended is asked for the end of its log.
fn ask<T: serde::Serialize>(
    worker: &mut Piped<EngineReply>,
    line: &T,
    task: &Task,
) -> Result<EngineReply, ExportError> {
    let sent = worker.say(line);
    match worker.receive() {
        Ok(EngineReply::Failed { error }) => Err(task.refused(error)),
        Ok(reply) => Ok(reply),
        Err(heard) => Err(match sent.err().unwrap_or(heard) {
            PipeError::Late(time) => ExportError::Late { what: task.what, path: task.path.clone(), time },
            other => task.refused(other.to_string()),
        }),
    }
}
