//! TensorFlow's own library, which runs a SavedModel: `libtensorflow_cc.so.2` of its wheel, by its C API, without Python.

mod result;
mod safe;
mod sys;

pub use safe::{Session, TensorFlow};

use crate::{ExportError, foreign::Wheel};
use std::path::PathBuf;

/// Where it is found.
const WHEEL: Wheel =
    Wheel { what: WHAT, format: "tensorflow", package: "tensorflow", dir: "tensorflow", file: "libtensorflow_cc.so.2" };
/// In error messages.
const WHAT: &str = "TensorFlow";

/// The first library among `candidates`: itself, in a directory, in a `site-packages`, or in an environment of Python.
///
/// # Errors
/// Where it was looked for.
pub fn library(candidates: &[PathBuf]) -> Result<PathBuf, ExportError> {
    WHEEL.library(candidates)
}
