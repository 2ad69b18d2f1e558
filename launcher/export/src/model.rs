//! The input of a writer: a graph with its metadata.

use crate::ExportError;
use enn_common::graph::{Dim, Graph, Id, Node, Op};
use std::collections::BTreeMap;

/// Rows of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch {
    /// Smallest number of rows, at least 1.
    pub min: u64,
    /// Number of rows for which compilers tune.
    pub opt: u64,
    /// Largest number of rows.
    pub max: u64,
}

impl Default for Batch {
    fn default() -> Self {
        Self { min: 1, opt: 64, max: 4096 }
    }
}

/// A graph to be written.
#[derive(Debug)]
pub struct Model<'a> {
    /// Name in the file.
    pub name: &'a str,
    /// Function of the model.
    pub graph: &'a Graph,
    /// Rows of one call, where a format states them.
    pub batch: Batch,
    /// Metadata for the file, e.g. `enn.run` and the whole sidecar.
    pub about: &'a BTreeMap<String, String>,
}

/// Returns an input that has the batch in an axis: its id, the axis, and the multiple of the batch. `node` is named in the error.
pub(crate) fn open_axis(target: &'static str, graph: &Graph, node: &Node) -> Result<(Id, usize, u64), ExportError> {
    let open = |id: &Id| {
        let shape = &graph.value(*id).shape;
        let axis = shape.iter().position(|dim| dim.is_open())?;
        Some((*id, axis, shape[axis].of(1)))
    };
    graph.inputs().iter().find_map(open).ok_or_else(|| ExportError::Unsupported {
        target,
        op: node.op.name().to_owned(),
        place: node.place.clone(),
        why: "it stretches to the batch, and no input has the batch".to_owned(),
        hint: "give the model an input with the batch as an axis".to_owned(),
    })
}

/// Describes the nearest alternative to an operation on more axes than a format takes.
pub(crate) fn on_fewer_axes(op: &Op) -> String {
    let nearest = match op {
        Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::And | Op::Not | Op::Where | Op::Cast { .. } => {
            "the same on axes that a reshape has joined, as it looks at elements alone"
        }
        Op::MatMul => "the same with its leading axes joined to one by a reshape",
        Op::Linear | Op::LayerNorm { .. } | Op::Softmax => {
            "the same with all axes but the last joined to one by a reshape"
        }
        Op::Reduce { .. } => "one reduction after the other, each of neighbouring axes with the rest joined",
        Op::Reshape { .. } => "a shape in which neighbouring axes are joined",
        Op::Permute { .. } => "several permutations, each of axes that a reshape has joined",
        Op::Expand { .. } => "one axis after the other, with those before and behind it joined",
        Op::Slice { .. } | Op::Concat { .. } | Op::Gather { .. } => {
            "the same with the axes before its own, and those behind it, joined to one each"
        }
    };
    format!("{nearest}; or onnx, which takes any number of axes")
}

/// Returns the size of axes that are joined to one.
pub(crate) fn joined(axes: &[Dim]) -> Dim {
    let elements = axes.iter().map(|dim| dim.of(1)).product();
    if axes.iter().any(|dim| dim.is_open()) { Dim::Batch(elements) } else { Dim::Fixed(elements) }
}
