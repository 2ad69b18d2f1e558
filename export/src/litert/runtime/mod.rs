//! LiteRT's own library, which runs a `.tflite` file: `libLiteRt.so` of the wheel ai-edge-litert, by its C API, without Python.

mod result;
mod safe;
mod sys;

pub use safe::{Compiled, LiteRt};

use crate::{ExportError, foreign::Wheel};
use std::path::PathBuf;

/// Where it is found.
const WHEEL: Wheel = Wheel {
    what: WHAT,
    format: "litert",
    package: "'ai-edge-litert>=2.2'",
    dir: "ai_edge_litert",
    file: "libLiteRt.so",
};
/// In error messages.
const WHAT: &str = "LiteRT";

/// The first library among `candidates`: itself, in a directory, in a `site-packages`, or in an environment of Python.
///
/// # Errors
/// Where it was looked for.
pub fn library(candidates: &[PathBuf]) -> Result<PathBuf, ExportError> {
    WHEEL.library(candidates)
}
