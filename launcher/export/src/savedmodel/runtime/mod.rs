//! TensorFlow's own library, which runs a SavedModel: `libtensorflow_cc.so.2` of its wheel, by its C API, without Python.

mod result;
mod safe;
mod sys;

pub use safe::{Session, TensorFlow};

use crate::{ExportError, foreign::Wheel};
use std::path::PathBuf;

const WHEEL: Wheel =
    Wheel { what: WHAT, format: "tensorflow", package: "tensorflow", dir: "tensorflow", file: "libtensorflow_cc.so.2" };
/// Name of the runtime in error messages.
const WHAT: &str = "TensorFlow";

/// Returns the first library among `candidates`: given itself, in a directory, in a `site-packages`, or in a Python environment.
///
/// # Errors
/// The library was not found; the error lists the places.
pub fn library(candidates: &[PathBuf]) -> Result<PathBuf, ExportError> {
    WHEEL.library(candidates)
}
