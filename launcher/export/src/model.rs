//! The input of a writer: a graph with its metadata.

use crate::ExportError;
use enn_common::{
    fs::atomic,
    graph::{DType, Dim, Graph, Id, Node, Op},
};
use half::{bf16, f16};
use std::{
    collections::{BTreeMap, HashSet},
    path::Path,
};

/// Hint for a model that is too large for a format.
pub(crate) const ANY_SIZE: &str = "export to onnx or pt2, which hold weights of any size";

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

/// Returns where inputs have the batch in an axis: the input, the axis, and the multiple of the batch.
pub(crate) fn open_axes(graph: &Graph) -> impl Iterator<Item = (Id, usize, u64)> {
    let open = |id: &Id| {
        let id = *id;
        let shape = graph.value(id).shape.iter().enumerate();
        shape.filter(|(_, dim)| dim.is_open()).map(move |(axis, dim)| (id, axis, dim.of(1)))
    };
    graph.inputs().iter().flat_map(open)
}

/// Returns the first of the [`open_axes`]. `node` is named in the error.
pub(crate) fn open_axis(target: &'static str, graph: &Graph, node: &Node) -> Result<(Id, usize, u64), ExportError> {
    open_axes(graph).next().ok_or_else(|| {
        let why = "it stretches to the batch, and no input has the batch";
        let hint = "give the model an input with the batch as an axis";
        ExportError::unsupported(target, node.op.name(), &node.place, why, hint)
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

/// Returns the sizes with all axes but the last joined to one.
pub(crate) fn joined_rows(shape: &[Dim]) -> [Dim; 2] {
    let (last, lead) = shape.split_last().expect("a value of axes");
    [joined(lead), *last]
}

/// Returns a size, −1 where it is dynamic.
pub(crate) fn signed(dim: Dim) -> i64 {
    dim.fixed().map_or(-1, u64::cast_signed)
}

/// Returns numbers in an element type of two bytes, little-endian.
pub(crate) fn halves(numbers: &[f32], dtype: DType) -> Vec<u8> {
    match dtype {
        DType::F16 => numbers.iter().flat_map(|number| f16::from_f32(*number).to_le_bytes()).collect(),
        _ => numbers.iter().flat_map(|number| bf16::from_f32(*number).to_le_bytes()).collect(),
    }
}

/// Reserves a name, with a number from `first` on appended where it is taken.
pub(crate) fn reserve(taken: &mut HashSet<String>, name: String, first: u64) -> String {
    let numbered = (first..).map(|number| format!("{name}_{number}"));
    let mut names = std::iter::once(name.clone()).chain(numbered);
    names.find(|name| taken.insert(name.clone())).expect("numbers do not end")
}

/// Makes the directory `dir` whole or not at all, replacing an existing one: `fill` fills a temporary one beside it.
pub(crate) fn write_dir(dir: &Path, fill: impl FnOnce(&Path) -> Result<(), ExportError>) -> Result<(), ExportError> {
    let temporary = atomic::temporary(dir);
    let made = fill(&temporary).and_then(|()| Ok(atomic::place_dir(&temporary, dir)?));
    if made.is_err() {
        // The first error is returned; the leftover has a hidden name.
        let _ = std::fs::remove_dir_all(&temporary);
    }
    made
}
