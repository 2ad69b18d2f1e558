//! TensorFlow's own library, which runs a SavedModel: `libtensorflow_cc.so.2` of its wheel, by its C API, without Python.

mod result;
mod safe;
mod sys;

pub use safe::{Session, TensorFlow};

use crate::{ExportError, foreign};
use std::path::{Path, PathBuf};

/// In error messages.
const WHAT: &str = "TensorFlow";

/// TensorFlow's library in a Python's site-packages.
///
/// # Errors
/// When it is not there.
pub fn library(site_packages: &Path) -> Result<PathBuf, ExportError> {
    foreign::of_wheel(site_packages, "tensorflow/libtensorflow_cc.so.2", (WHAT, "tensorflow"))
}
