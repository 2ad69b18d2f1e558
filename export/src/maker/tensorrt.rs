//! TensorRT engines from ONNX files, and their runtime: a Python with TensorRT 10 or 11, on a machine with the GPU in question.
//!
//! An engine belongs to one kind of GPU and one release of TensorRT. Types are those of the ONNX file; factors are not rounded to TF32.

use super::{Limits, Made, Tool, exchange::Exchange, prepare::Backend};
use crate::{Batch, ExportError, Model};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The Python that has TensorRT.
#[derive(Debug, Clone)]
pub struct Python {
    pub interpreter: PathBuf,
    /// The library of the NVIDIA driver.
    pub driver: PathBuf,
}

impl Python {
    /// With the driver where the system finds it.
    pub fn new(interpreter: PathBuf) -> Self {
        Self { interpreter, driver: "libcuda.so.1".into() }
    }
}

const fn tool(script: &'static str) -> Tool {
    // The script itself says which releases it takes: more than one.
    Tool { what: "TensorRT", script, pins: &[], backend: Backend::TensorRt, other: "onnx" }
}

/// Builds an engine of `source`, which is `model` as ONNX, for batches in its range. What was made says for which GPU (`device`,
/// `capability`), its versions for which TensorRT.
///
/// # Errors
/// An interpreter without TensorRT 10 or 11; no GPU; what TensorRT says; a limit.
pub fn build(
    python: &Python,
    model: &Model<'_>,
    (source, path): (&Path, &Path),
    limits: Limits,
) -> Result<Made, ExportError> {
    let job = json!({ "driver": python.driver, "profile": profile(model) });
    let tool = tool(concat!(include_str!("tensorrt.py"), include_str!("tensorrt_build.py")));
    tool.make(&python.interpreter, (source, path), job, limits)
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

/// Loads an engine whose inputs and outputs have these names, in their order. What is exchanged lies below `scratch`.
///
/// # Errors
/// As [`build`].
pub fn start(
    python: &Python,
    artifact: &Path,
    ports: (Vec<String>, Vec<String>),
    scratch: &Path,
    limits: Limits,
) -> Result<Exchange, ExportError> {
    let tool = tool(concat!(include_str!("tensorrt.py"), include_str!("tensorrt_run.py")));
    tool.run(&python.interpreter, (artifact, scratch), ports, json!({ "driver": python.driver }), limits)
}
