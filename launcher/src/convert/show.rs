//! What is in a checkpoint or a saved model of any form: names, types, shapes, plain values.

use super::{ConvertError, source::Source};
use std::path::{Path, PathBuf};

/// Longest plain value that is told.
const VALUE_CHARS_MAX: usize = 160;

/// The contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contents {
    /// File or directory.
    pub path: PathBuf,
    /// Its form.
    pub form: &'static str,
    /// Name, PyTorch's name of the element type, shape.
    pub tensors: Vec<(String, &'static str, Vec<u64>)>,
    /// Plain values, in Python's manner, cut where they are long; or why one is not understood.
    pub values: Vec<(String, String)>,
    /// What is there and is not read, with the reason.
    pub refused: Vec<String>,
}

/// Reads names and plain values; no tensor's data.
pub fn contents(path: &Path) -> Result<Contents, ConvertError> {
    let source = Source::open(path)?;
    let tensors = source.tensors()?.into_iter().map(|one| (one.name, one.element.torch(), one.shape)).collect();
    let value = |name: String| {
        let text =
            source.value(&name).map_or_else(|error| format!("not understood: {error}"), |value| Source::plain(&value));
        let cut: String = text.chars().take(VALUE_CHARS_MAX).collect();
        let end = if cut.len() < text.len() { "…" } else { "" };
        (name, format!("{cut}{end}"))
    };
    let values = source.values().into_iter().map(value).collect();
    let (path, form, refused) = (source.path().to_path_buf(), source.form(), source.refused());
    Ok(Contents { path, form, tensors, values, refused })
}
