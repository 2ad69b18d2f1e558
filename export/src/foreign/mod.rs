//! Runtimes that are found at run time, as shared libraries: what all of them need.

pub(crate) mod sys;

use crate::ExportError;
use std::path::{Path, PathBuf};

/// The file of a wheel in a Python's site-packages.
///
/// # Errors
/// When it is not there.
pub(crate) fn of_wheel(
    site_packages: &Path,
    file: &str,
    (what, package): (&'static str, &str),
) -> Result<PathBuf, ExportError> {
    let path = site_packages.join(file);
    if path.is_file() {
        return Ok(path);
    }
    let why = format!("{} is not there", path.display());
    Err(ExportError::Unavailable { what, why, hint: format!("pip install {package}") })
}

/// The number of elements of a shape that agrees with as many values.
pub(crate) fn agrees(tensor: &crate::Tensor) -> Result<(), String> {
    let expected = tensor.shape.iter().try_fold(1_usize, |all, size| all.checked_mul(*size));
    if expected == Some(tensor.values.len()) {
        return Ok(());
    }
    Err(format!("input {} has {} values, its shape is {:?}", tensor.name, tensor.values.len(), tensor.shape))
}

/// Numbers of a tensor's bytes.
pub(crate) fn numbers<const N: usize>(bytes: &[u8], number: impl Fn([u8; N]) -> f32) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|chunk| number(*chunk)).collect()
}
