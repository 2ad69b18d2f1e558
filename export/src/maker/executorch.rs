//! Programs of ExecuTorch from a PT2 archive, and their runtime. Memory is planned for the largest batch of the archive.

use super::{Limits, Made, Pin, Reply, TORCH, Tool, Working, prepare::Backend};
use crate::{ExportError, Runner, Tensor};
use serde_json::json;
use std::path::{Path, PathBuf};

/// The release that was built with our PyTorch: others convert, and cannot run.
pub(super) const EXECUTORCH: Pin = ("executorch", "1.2.0");
const PINS: &[Pin] = &[TORCH, EXECUTORCH];

/// Whose kernels a program calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delegate {
    /// ExecuTorch's own, which are everywhere.
    Portable,
    /// XNNPACK's, where it has them.
    Xnnpack,
}

const fn tool(script: &'static str) -> Tool {
    Tool { what: "ExecuTorch", script, pins: PINS, backend: Backend::ExecuTorch }
}

/// Lowers the archive `source` into `path`. What was made says how much memory a call needs (`planned_memory_bytes`).
///
/// # Errors
/// An interpreter without ExecuTorch 1.2; what ExecuTorch says; a limit.
pub fn lower(
    python: &Path,
    (source, path): (&Path, &Path),
    delegate: Delegate,
    limits: Limits,
) -> Result<Made, ExportError> {
    let delegate = match delegate {
        Delegate::Portable => "portable",
        Delegate::Xnnpack => "xnnpack",
    };
    tool(include_str!("executorch.py")).make(python, (source, path), json!({ "delegate": delegate }), limits)
}

/// A program at work in ExecuTorch's runtime for Python.
#[derive(Debug)]
pub struct ExecuTorchRunner {
    working: Working,
    version: String,
    ports: (Vec<String>, Vec<String>),
    /// What is exchanged.
    files: (PathBuf, PathBuf),
}

impl ExecuTorchRunner {
    /// Loads a program whose inputs and outputs have these names, in their order. What is exchanged lies in `scratch`.
    ///
    /// # Errors
    /// An interpreter without ExecuTorch 1.2; what ExecuTorch says.
    pub fn start(
        python: &Path,
        artifact: &Path,
        (inputs, outputs): (Vec<String>, Vec<String>),
        scratch: &Path,
        limits: Limits,
    ) -> Result<Self, ExportError> {
        let tool = tool(include_str!("executorch_run.py"));
        let mut working = tool.start(python, artifact, json!({ "artifact": artifact }), limits)?;
        let version = match tool.hear(&mut working)? {
            Reply::Ready(version) => version,
            other => return Err(working.refused(format!("it said {other:?} before it was asked"))),
        };
        let files = (scratch.join("executorch.inputs"), scratch.join("executorch.outputs"));
        Ok(Self { working, version, ports: (inputs, outputs), files })
    }
}

impl Runner for ExecuTorchRunner {
    fn version(&self) -> String {
        format!("executorch {}", self.version)
    }

    fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, ExportError> {
        let (mut bytes, mut shapes) = (Vec::new(), Vec::new());
        for name in &self.ports.0 {
            let input = inputs.iter().find(|input| input.name == *name);
            let input = input.ok_or_else(|| self.working.refused(format!("input {name} was not given")))?;
            bytes.extend(input.values.iter().flat_map(|value| value.to_le_bytes()));
            shapes.push(&input.shape);
        }
        let (given, answered) = &self.files;
        std::fs::write(given, bytes).map_err(|source| ExportError::Io { path: given.clone(), source })?;
        self.working.say(&json!({ "inputs": given, "outputs": answered, "shapes": shapes }))?;
        let shapes = match self.working.hear()? {
            Reply::Answered(shapes) if shapes.len() == self.ports.1.len() => shapes,
            other => {
                return Err(self
                    .working
                    .refused(format!("it said {other:?}, expected {} outputs", self.ports.1.len())));
            }
        };
        let bytes = std::fs::read(answered).map_err(|source| ExportError::Io { path: answered.clone(), source })?;
        let mut values = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        let output = |(name, shape): (&String, Vec<usize>)| {
            let values: Vec<f32> = values.by_ref().take(shape.iter().product()).collect();
            Tensor { name: name.clone(), shape, values }
        };
        let outputs: Vec<Tensor> = self.ports.1.iter().zip(shapes).map(output).collect();
        let whole = |tensor: &Tensor| tensor.values.len() == tensor.shape.iter().product::<usize>();
        if !outputs.iter().all(whole) {
            return Err(self.working.refused("its outputs are cut".to_owned()));
        }
        Ok(outputs)
    }
}

impl Drop for ExecuTorchRunner {
    fn drop(&mut self) {
        // They may never have been written.
        let _ = std::fs::remove_file(&self.files.0);
        let _ = std::fs::remove_file(&self.files.1);
    }
}
