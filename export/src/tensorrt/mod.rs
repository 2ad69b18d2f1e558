//! TensorRT engines, made of ONNX files and run by a Python that has TensorRT 10 or 11, as a child process.
//!
//! An engine belongs to one kind of GPU and one release of TensorRT. Types are those of the ONNX file; factors are not rounded to TF32.

mod child;

use crate::{Batch, ExportError, Model, Runner, Tensor};
use child::{Child, Fault};
use enn_common::fs::atomic;
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

const NAME: &str = "TensorRT";
const SCRIPT: &str = include_str!("child.py");

/// The Python that has TensorRT.
#[derive(Debug, Clone)]
pub struct Tool {
    /// Its interpreter.
    pub python: PathBuf,
    /// The library of the NVIDIA driver.
    pub driver: PathBuf,
    /// Longest time for an answer: a built engine, a loaded one, a batch.
    pub limit: Duration,
}

impl Tool {
    /// With the driver where the system finds it, and half an hour.
    pub fn new(python: PathBuf) -> Self {
        Self { python, driver: "libcuda.so.1".into(), limit: Duration::from_secs(1800) }
    }

    fn start(&self) -> Result<Child, ExportError> {
        let failed = |error| unavailable(format!("{}: {error}", self.python.display()));
        Child::start(&self.python, SCRIPT).map_err(failed)
    }
}

/// Where an engine was built; elsewhere it does not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Home {
    /// The release of TensorRT.
    pub version: String,
    /// The GPU.
    pub device: String,
    /// Its compute capability, e.g. `9.0`.
    pub capability: String,
}

/// Builds an engine of an ONNX file of `model`, for batches in its range.
///
/// # Errors
/// When there is no TensorRT, or no GPU; when it refuses the file, or is not done in time.
pub fn build(model: &Model<'_>, onnx: &Path, out: &Path, tool: &Tool) -> Result<Home, ExportError> {
    let beside = atomic::temporary(out);
    let job = json!({
        "task": "build",
        "onnx": text(onnx)?,
        "out": text(&beside)?,
        "driver": text(&tool.driver)?,
        "profile": profile(model),
    });
    match tool.start()?.ask(&job, tool.limit) {
        Ok(answer) => {
            atomic::place(&beside, out)?;
            Ok(home(&answer))
        }
        Err(fault) => {
            let _absent = fs::remove_file(&beside);
            Err(told(fault, onnx))
        }
    }
}

/// The shapes of every input at the fewest rows, those it is tuned for, and the most.
fn profile(model: &Model<'_>) -> Value {
    let Batch { min, opt, max } = model.batch;
    let shapes = model.graph.inputs().iter().map(|id| {
        let value = model.graph.value(*id);
        let at = |batch| value.shape.iter().map(|dim| dim.of(batch)).collect::<Vec<u64>>();
        (value.name.clone(), json!([at(min), at(opt), at(max)]))
    });
    Value::Object(shapes.collect())
}

/// An engine at work on its GPU.
#[derive(Debug)]
pub struct EngineRunner {
    child: Child,
    home: Home,
    path: PathBuf,
    limit: Duration,
}

impl EngineRunner {
    /// Loads an engine.
    ///
    /// # Errors
    /// As [`build`].
    pub fn load(path: &Path, tool: &Tool) -> Result<Self, ExportError> {
        let mut child = tool.start()?;
        let job = json!({"task": "load", "engine": text(path)?, "driver": text(&tool.driver)?});
        let answer = child.ask(&job, tool.limit).map_err(|fault| told(fault, path))?;
        Ok(Self { child, home: home(&answer), path: path.to_owned(), limit: tool.limit })
    }

    /// Where it runs.
    pub fn home(&self) -> &Home {
        &self.home
    }
}

impl Runner for EngineRunner {
    fn version(&self) -> String {
        format!("{NAME} {} on {}", self.home.version, self.home.device)
    }

    fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, ExportError> {
        let inputs = inputs.iter().map(|input| {
            let bytes: String = input.values.iter().flat_map(|v| v.to_le_bytes()).map(|b| format!("{b:02x}")).collect();
            json!({"name": input.name, "shape": input.shape, "bytes": bytes})
        });
        let job = json!({"task": "run", "inputs": inputs.collect::<Vec<_>>()});
        let answer = self.child.ask(&job, self.limit).map_err(|fault| told(fault, &self.path))?;
        let outputs: Option<Vec<Tensor>> = answer.as_array().and_then(|outputs| outputs.iter().map(tensor).collect());
        outputs.ok_or_else(|| refused(&self.path, "its answer is no list of tensors".to_owned()))
    }
}

fn tensor(told: &Value) -> Option<Tensor> {
    let shape =
        told["shape"].as_array()?.iter().map(|size| usize::try_from(size.as_u64()?).ok()).collect::<Option<_>>()?;
    let digits = told["bytes"].as_str()?;
    let number = |at: usize| Some(f32::from_bits(u32::from_str_radix(digits.get(at..at + 8)?, 16).ok()?.swap_bytes()));
    let values = (0..digits.len()).step_by(8).map(number).collect::<Option<_>>()?;
    Some(Tensor { name: told["name"].as_str()?.to_owned(), shape, values })
}

fn home(answer: &Value) -> Home {
    let part = |name: &str| answer[name].as_str().unwrap_or_default().to_owned();
    Home { version: part("version"), device: part("device"), capability: part("capability") }
}

/// Jobs are JSON, which holds no other paths.
fn text(path: &Path) -> Result<&str, ExportError> {
    path.to_str().ok_or_else(|| refused(path, "its path is not UTF-8".to_owned()))
}

fn told(fault: Fault, path: &Path) -> ExportError {
    match fault {
        Fault::Said { kind, why } if kind == "missing" => unavailable(why),
        Fault::Said { why, .. } | Fault::Ended(why) => refused(path, why),
    }
}

fn refused(path: &Path, why: String) -> ExportError {
    ExportError::Refused { what: NAME, path: path.to_owned(), why }
}

fn unavailable(why: String) -> ExportError {
    let hint = "on a machine with an NVIDIA GPU, python3 -m pip install tensorrt, and name that Python; or export ONNX";
    ExportError::Unavailable { what: NAME, why, hint: hint.to_owned() }
}
