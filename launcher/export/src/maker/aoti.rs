//! Packages of AOTInductor: a PT2 archive compiled for this machine's kind of processor, or for its GPU. For a processor no weight is
//! part of the code, and the package records the place of each: the weights of a retrained model replace them without compiling.

use super::{Limits, Made, Pin, TORCH, prepare::Backend, tool::Tool};
use crate::ExportError;
use serde_json::json;
use std::path::Path;

/// Key under which a package names its device: "cpu" or "cuda".
pub const DEVICE: &str = "AOTI_DEVICE_KEY";

const PINS: &[Pin] = &[TORCH];
const TOOL: Tool =
    Tool { what: "AOTInductor", script: include_str!("aoti.py"), pins: PINS, backend: Backend::Aoti, other: "pt2" };

/// Compiles the archive `source` for a device ("cpu" or "cuda") into `path`. The result names the required instruction set
/// (`AOTI_CPU_ISA`). It takes minutes, and a C++ compiler.
///
/// # Errors
/// The interpreter lacks PyTorch 2.11; any error of PyTorch; a limit is exceeded.
pub fn compile(python: &Path, source: &Path, path: &Path, device: &str, limits: Limits) -> Result<Made, ExportError> {
    TOOL.make(python, source, path, json!({ "device": device, "old": null }), limits)
}

/// Replaces the weights of the package `old` by those of the archive `source`, into `path`: seconds, and no compiler.
///
/// # Errors
/// The package's code is not that of the archive's program, or the package does not record the places of its weights; otherwise as [`compile`].
pub fn replace(python: &Path, source: &Path, path: &Path, old: &Path, limits: Limits) -> Result<Made, ExportError> {
    TOOL.make(python, source, path, json!({ "device": "cpu", "old": old }), limits)
}
