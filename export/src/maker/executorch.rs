//! Programs of ExecuTorch from a PT2 archive, and their runtime. Memory is planned for the largest batch of the archive.

use super::{Limits, Made, Pin, TORCH, Tool, exchange::Exchange, prepare::Backend};
use crate::ExportError;
use serde_json::json;
use std::path::Path;

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
    Tool { what: "ExecuTorch", script, pins: PINS, backend: Backend::ExecuTorch, other: "pt2" }
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

/// Loads a program into ExecuTorch's runtime for Python. Its inputs and outputs have these names, in their order; what is exchanged
/// lies below `scratch`.
///
/// # Errors
/// An interpreter without ExecuTorch 1.2; what ExecuTorch says.
pub fn start(
    python: &Path,
    artifact: &Path,
    ports: (Vec<String>, Vec<String>),
    scratch: &Path,
    limits: Limits,
) -> Result<Exchange, ExportError> {
    tool(include_str!("executorch_run.py")).run(python, (artifact, scratch), ports, json!({}), limits)
}
