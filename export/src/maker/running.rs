//! An artifact in its makers' runtime: a tool that answers questions. Numbers lie in two files beside the pipe, f32 after f32.

use super::{Limits, Reply, Tool, Working};
use crate::{ExportError, Tensor};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// A loaded artifact.
#[derive(Debug)]
pub(super) struct Running {
    working: Working,
    version: String,
    ports: (Vec<String>, Vec<String>),
    /// What is exchanged.
    files: (PathBuf, PathBuf),
}

impl Running {
    /// Starts a tool on an artifact whose inputs and outputs have these names, in their order. What is exchanged lies in `scratch`.
    pub(super) fn start(
        tool: &Tool,
        python: &Path,
        (artifact, scratch): (&Path, &Path),
        ports: (Vec<String>, Vec<String>),
        mut job: Value,
        limits: Limits,
    ) -> Result<Self, ExportError> {
        job["artifact"] = json!(artifact);
        (job["inputs"], job["outputs"]) = (json!(ports.0), json!(ports.1));
        let mut working = tool.start(python, artifact, job, limits)?;
        let version = match tool.hear(&mut working)? {
            Reply::Ready(version) => version,
            other => return Err(working.refused(format!("it said {other:?} before it was asked"))),
        };
        let name = tool.what.to_lowercase();
        let files = (scratch.join(format!("{name}.inputs")), scratch.join(format!("{name}.outputs")));
        Ok(Self { working, version, ports, files })
    }

    /// Of the tool.
    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// The outputs, in the order of the ports.
    pub(super) fn answer(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, ExportError> {
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

impl Drop for Running {
    fn drop(&mut self) {
        // They may never have been written.
        let _ = std::fs::remove_file(&self.files.0);
        let _ = std::fs::remove_file(&self.files.1);
    }
}
