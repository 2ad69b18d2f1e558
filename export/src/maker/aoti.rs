//! Packages of AOTInductor: a PT2 archive as code of this machine's kind of processor, or of its GPU. For a processor no weight is
//! part of the code, and it is noted where in the library each lies: those of a model trained anew take their place without compiling.

use super::{Limits, Made, Pin, TORCH, Tool, prepare::Backend};
use crate::ExportError;
use serde_json::json;
use std::path::Path;

/// Where a package says for which device its code is: "cpu" or "cuda".
pub const DEVICE: &str = "AOTI_DEVICE_KEY";

const PINS: &[Pin] = &[TORCH];
const TOOL: Tool =
    Tool { what: "AOTInductor", script: include_str!("aoti.py"), pins: PINS, backend: Backend::Aoti, other: "pt2" };

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
    TOOL.make(python, (source, path), json!({ "device": device, "old": null }), limits)
}

/// Puts the weights of the archive `source` in place of those of the package `old`, into `path`: seconds, and no compiler.
///
/// # Errors
/// A package whose code is not that of the archive's program, or that does not say where its weights lie; otherwise as [`compile`].
pub fn replace(python: &Path, (source, path): (&Path, &Path), old: &Path, limits: Limits) -> Result<Made, ExportError> {
    TOOL.make(python, (source, path), json!({ "device": "cpu", "old": old }), limits)
}
