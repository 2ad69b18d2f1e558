//! TensorRT engines from ONNX files, and their runtime: a Python with TensorRT 10 or 11, on a machine with the GPU.
//!
//! An engine is specific to one kind of GPU and one release of TensorRT. Types are those of the ONNX file; factors are not rounded to TF32.

use super::{Limits, Made, exchange::Exchange, prepare::Backend, tool::Tool};
use crate::{Batch, ExportError, Model, Ports};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

#[derive(Debug, Clone)]
pub struct TensorRtPython {
    pub interpreter: PathBuf,
    /// The library of the NVIDIA driver.
    pub driver: PathBuf,
}

impl TensorRtPython {
    /// Uses the driver library that the system finds.
    pub fn new(interpreter: PathBuf) -> Self {
        Self { interpreter, driver: "libcuda.so.1".into() }
    }
}

const fn tool(script: &'static str) -> Tool {
    // The script itself checks the releases: it accepts several.
    Tool { what: "TensorRT", script, pins: &[], backend: Backend::TensorRt, other: "onnx" }
}

/// Builds an engine of `source`, which is `model` as ONNX, for batches in its range. The result names the GPU (`device`,
/// `capability`) and the version of TensorRT.
///
/// # Errors
/// The interpreter lacks TensorRT 10 or 11; there is no GPU; any error of TensorRT; a limit is exceeded.
pub fn build(
    python: &TensorRtPython,
    model: &Model<'_>,
    source: &Path,
    path: &Path,
    limits: Limits,
) -> Result<Made, ExportError> {
    let job = json!({ "driver": python.driver, "profile": profile(model) });
    let tool = tool(concat!(include_str!("tensorrt.py"), include_str!("tensorrt_build.py")));
    tool.make(&python.interpreter, source, path, job, limits)
}

/// Returns the shapes of every input for the smallest, the tuned and the largest batch.
fn profile(model: &Model<'_>) -> Value {
    let Batch { min, opt, max } = model.batch;
    let shapes = model.graph.inputs().iter().map(|id| {
        let value = model.graph.value(*id);
        let at = |batch| value.shape.iter().map(|dim| dim.of(batch)).collect::<Vec<u64>>();
        (value.name.clone(), json!([at(min), at(opt), at(max)]))
    });
    Value::Object(shapes.collect())
}

/// Loads an engine. Exchanged files lie below `scratch`.
///
/// # Errors
/// As [`build`].
pub fn start(
    python: &TensorRtPython,
    artifact: &Path,
    ports: Ports,
    scratch: &Path,
    limits: Limits,
) -> Result<Exchange, ExportError> {
    let tool = tool(concat!(include_str!("tensorrt.py"), include_str!("tensorrt_run.py")));
    tool.run(&python.interpreter, artifact, scratch, ports, json!({ "driver": python.driver }), limits)
}
