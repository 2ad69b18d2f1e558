//! Programs of ExecuTorch from a PT2 archive, and their runtime. Memory is planned for the largest batch of the archive.

use super::{Limits, Made, Pin, TORCH, exchange::Exchange, pin::EXECUTORCH, prepare::Backend, tool::Tool};
use crate::{ExportError, Ports};
use serde_json::json;
use std::path::Path;

const PINS: &[Pin] = &[TORCH, EXECUTORCH];

/// Kernels that a program calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delegate {
    /// ExecuTorch's own portable kernels.
    Portable,
    /// XNNPACK's kernels, where they exist.
    Xnnpack,
}

const fn tool(script: &'static str) -> Tool {
    Tool { what: "ExecuTorch", script, pins: PINS, backend: Backend::ExecuTorch, other: "pt2" }
}

/// Lowers the archive `source` into `path`. The result states the memory of a call (`planned_memory_bytes`).
///
/// # Errors
/// The interpreter lacks ExecuTorch 1.2; any error of ExecuTorch; a limit is exceeded.
pub fn lower(
    python: &Path,
    source: &Path,
    path: &Path,
    delegate: Delegate,
    limits: Limits,
) -> Result<Made, ExportError> {
    let delegate = match delegate {
        Delegate::Portable => "portable",
        Delegate::Xnnpack => "xnnpack",
    };
    tool(include_str!("executorch.py")).make(python, source, path, json!({ "delegate": delegate }), limits)
}

/// Loads a program into ExecuTorch's runtime for Python. Exchanged files lie below `scratch`.
///
/// # Errors
/// The interpreter lacks ExecuTorch 1.2, or any error of ExecuTorch.
pub fn start(
    python: &Path,
    artifact: &Path,
    ports: Ports,
    scratch: &Path,
    limits: Limits,
) -> Result<Exchange, ExportError> {
    tool(include_str!("executorch_run.py")).run(python, artifact, scratch, ports, json!({}), limits)
}
