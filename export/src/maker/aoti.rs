//! Packages of AOTInductor: a PT2 archive as code of this machine's kind of processor, or of its GPU.

use super::{Limits, Made, Pin, TORCH, Tool, prepare::Backend};
use crate::ExportError;
use serde_json::json;
use std::path::Path;

const PINS: &[Pin] = &[TORCH];

/// Compiles the archive `source` for a device ("cpu" or "cuda") into `path`. What was made says which instruction set it needs
/// (`AOTI_CPU_ISA`): it runs where that is there. It takes minutes, and a C++ compiler.
///
/// # Errors
/// An interpreter without PyTorch 2.11; what PyTorch says; a limit.
pub fn compile(
    python: &Path,
    (source, path): (&Path, &Path),
    device: &str,
    limits: Limits,
) -> Result<Made, ExportError> {
    let tool = Tool { what: "AOTInductor", script: include_str!("aoti.py"), pins: PINS, backend: Backend::Aoti };
    tool.make(python, (source, path), json!({ "device": device }), limits)
}
