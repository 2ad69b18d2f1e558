//! Runtimes that are loaded at run time as shared libraries: their common parts.

mod find;
pub(crate) mod sys;

pub(crate) use find::{Wheel, install_hint};

/// Checks that a tensor has as many values as its shape.
pub(crate) fn agrees(tensor: &crate::Tensor) -> Result<(), String> {
    let expected = tensor.shape.iter().try_fold(1_usize, |all, size| all.checked_mul(*size));
    if expected == Some(tensor.values.len()) {
        return Ok(());
    }
    Err(format!("input {} has {} values, its shape is {:?}", tensor.name, tensor.values.len(), tensor.shape))
}

/// Decodes the numbers of a tensor's bytes.
pub(crate) fn numbers<const N: usize>(bytes: &[u8], number: impl Fn([u8; N]) -> f32) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|chunk| number(*chunk)).collect()
}
