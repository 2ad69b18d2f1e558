//! Tensors and types of an ONNX file (`TensorProto`, `ValueInfoProto`).

use crate::{proto::Message, spelling::numbers};
use enn_common::graph::{DType, Dim};
use std::borrow::Cow;

/// A tensor with known elements.
#[derive(Debug)]
pub(super) struct Initializer<'a> {
    pub name: String,
    pub dtype: DType,
    pub shape: Vec<u64>,
    pub bytes: Cow<'a, [u8]>,
}

/// Position of a tensor's elements in the file of tensors.
#[derive(Debug, Clone, Copy)]
pub(super) struct Outside<'a> {
    pub file: &'a str,
    pub offset: u64,
}

impl Initializer<'_> {
    /// Builds the tensor's message without the elements, which follow unless they are outside.
    pub(super) fn head(&self, outside: Option<Outside<'_>>) -> Message {
        let shape: Vec<i64> = self.shape.iter().map(|size| size.cast_signed()).collect();
        let head = Message::new().ints(1, &shape).uint(2, numbers(self.dtype).onnx).text(8, &self.name);
        let Some(Outside { file, offset }) = outside else { return head.opening(9, self.bytes.len() as u64) };
        let length = self.bytes.len().to_string();
        let entries = [("location", file), ("offset", &offset.to_string()), ("length", &length)];
        head.messages(13, entries.map(|(key, value)| entry(key, value))).uint(14, 1)
    }
}

/// Builds a `StringStringEntryProto`.
pub(super) fn entry(key: &str, value: &str) -> Message {
    Message::new().text(1, key).text(2, value)
}

/// Builds a `ValueInfoProto` of a name, element type and sizes.
pub(super) fn typed(name: &str, dtype: DType, shape: &[Dim], names_batch: bool) -> Message {
    let sizes = shape.iter().map(|dim| match dim {
        Dim::Fixed(size) => Message::new().uint(1, *size),
        Dim::Batch(_) if names_batch => Message::new().text(2, &dim.to_string()),
        Dim::Batch(_) => Message::new(),
    });
    let sizes = Message::new().messages(1, sizes);
    let tensor = Message::new().uint(1, numbers(dtype).onnx).message(2, &sizes);
    Message::new().text(1, name).message(2, &Message::new().message(1, &tensor))
}
