//! ONNX: operator set 18 in a file of version 8, which onnxruntime from 1.14 on, TensorRT and most others read.
//!
//! ```text
//! Graph ─ op ─► OnnxDraft: nodes and tensors ─ file ─► model.onnx, and model.onnx.DIGEST.data where one file would be too large
//! ```
//! The batch is the symbol `batch`. Weights have the names of the state dict; one that is only read by products of more
//! than two axes is stored transposed, as `NAME.T`. Nodes are named by their place, operation and position in the graph.
//!
//! **Invariant:** equal models give equal bytes. Constants of more than a kilobyte are never copied on their way to the file, except
//! transposed ones.

mod cut;
mod draft;
mod file;
mod op;
mod tensor;
#[cfg(test)]
mod tests;

use crate::{ExportError, Model};
use draft::OnnxDraft;
pub use file::{IR_VERSION, OPSET, data_files};
use std::path::{Path, PathBuf};

/// Limit on the bytes of a file that holds its tensors itself: protocol buffers end at 2 GiB.
pub const FILE_BYTES_MAX: u64 = 2_000_000_000;

/// Writes a model; returns the files, the model's own first.
///
/// # Errors
/// An operation cannot be expressed, before anything is written; or any error of the system.
pub fn write(model: &Model<'_>, path: &Path) -> Result<Vec<PathBuf>, ExportError> {
    write_within(model, path, FILE_BYTES_MAX)
}

/// Writes a model as [`write()`] does with another limit on the bytes of a file that holds its tensors itself; beyond it they lie in a
/// file beside it, one of [`data_files`].
///
/// # Errors
/// As [`write()`].
pub fn write_within(model: &Model<'_>, path: &Path, file_bytes_max: u64) -> Result<Vec<PathBuf>, ExportError> {
    let mut draft = OnnxDraft::new(model.graph)?;
    for (at, node) in model.graph.nodes().iter().enumerate() {
        draft.begin(at, node);
        op::emit(&mut draft, node)?;
    }
    draft.finish();
    file::write(&draft, model, path, file_bytes_max)
}
