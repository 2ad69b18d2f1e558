//! The contents of a checkpoint or a saved model of any form: names, types, shapes, plain values.

use super::{ConvertError, native::Native, python, source::Source};
use std::path::{Path, PathBuf};

const VALUE_CHARS_MAX: usize = 160;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contents {
    pub path: PathBuf,
    pub form: &'static str,
    /// The name, PyTorch's name of the element type, and the shape.
    pub tensors: Vec<(String, &'static str, Vec<u64>)>,
    /// Plain values in Python syntax, truncated if they are long; or why one cannot be read.
    pub values: Vec<(String, String)>,
    pub refused: Vec<String>,
    pub mapped: Option<Mapped>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapped {
    /// The name in the file, the setting of ENN, and the value.
    pub settings: Vec<(String, String, String)>,
    /// The tensor of ENN, its shape, and the names it is assembled from.
    pub tensors: Vec<(String, Vec<u64>, Vec<String>)>,
    pub left: Vec<(String, String)>,
}

impl Mapped {
    fn of(native: &Native) -> Self {
        let made = |tensor: super::Tensor| {
            let from = native.origin(&tensor.name).into_iter().map(str::to_owned).collect();
            (tensor.name, tensor.shape, from)
        };
        Self {
            settings: native.setting_lines(),
            tensors: native.tensors().into_iter().map(made).collect(),
            left: native.left.clone(),
        }
    }
}

pub fn contents(path: &Path) -> Result<Contents, ConvertError> {
    let source = Source::open(path)?;
    let tensors = source.tensors()?.into_iter().map(|one| (one.name, one.element.torch(), one.shape)).collect();
    let value = |name: String| {
        let text =
            source.value(&name).map_or_else(|error| format!("not understood: {error}"), |value| python::plain(&value));
        let cut: String = text.chars().take(VALUE_CHARS_MAX).collect();
        let end = if cut.len() < text.len() { "…" } else { "" };
        (name, format!("{cut}{end}"))
    };
    let values = source.values().into_iter().map(value).collect();
    let path = source.path().to_path_buf();
    let refused = source.refused();
    let source = source.mapped();
    let mapped = if let Source::Native(native) = &source { Some(Mapped::of(native)) } else { None };
    Ok(Contents { path, form: source.form(), tensors, values, refused, mapped })
}
