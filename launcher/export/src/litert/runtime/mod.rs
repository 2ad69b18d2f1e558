//! LiteRT's own library, which runs a `.tflite` file: `libLiteRt.so` of the wheel ai-edge-litert, by its C API, without Python.

mod result;
mod safe;
mod sys;

pub use safe::{CompiledModel, LiteRt};

use crate::{ExportError, foreign::Wheel};
use std::path::PathBuf;

const WHEEL: Wheel = Wheel {
    what: WHAT,
    format: "litert",
    package: "'ai-edge-litert>=2.2'",
    dir: "ai_edge_litert",
    file: "libLiteRt.so",
};
/// Name of the runtime in error messages.
const WHAT: &str = "LiteRT";

/// Returns the first library among `candidates`: given itself, in a directory, in a `site-packages`, or in a Python environment.
///
/// # Errors
/// The library was not found; the error lists the places.
pub fn library(candidates: &[PathBuf]) -> Result<PathBuf, ExportError> {
    WHEEL.library(candidates)
}
