//! A model's function as a graph that no part of libtorch is needed for: what is exported, and what every format is written from.
//!
//! ```text
//! worker: recorded forward pass ─ lowered to plain operations ─► graph.json + graph.safetensors ─► export: one writer per format
//! ```
//! Values are in single assignment, nodes in the order in which they can run, and the only open size is the batch.
//!
//! **Invariant:** a graph is checked where it is built and where it is read: operands come before their use, and shapes and element
//! types are those that [`infer`](infer::infer) gives. Floats of inputs, outputs and weights are f32; indices are i64.

mod dim;
pub mod eval;
pub mod file;
pub mod infer;
pub mod op;
mod value;

pub use dim::{Dim, numel, shape_text};
pub use op::{Binary, Compare, Fold, Op, Unary};
pub use value::{DType, Data, GraphValue, Known};

use infer::GraphError;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Position of a value in its graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Id(pub usize);

/// An operation at work. It has one result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Node {
    pub op: Op,
    pub ins: Vec<Id>,
    pub out: Id,
    /// Place in the model, a dotted path.
    pub place: String,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Graph {
    values: Vec<GraphValue>,
    nodes: Vec<Node>,
    inputs: Vec<Id>,
    outputs: Vec<Id>,
}

impl Graph {
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the data of a known value.
    ///
    /// # Panics
    /// With the id of another graph.
    pub fn value(&self, id: Id) -> &GraphValue {
        &self.values[id.0]
    }

    pub fn values(&self) -> impl Iterator<Item = (Id, &GraphValue)> {
        self.values.iter().enumerate().map(|(i, value)| (Id(i), value))
    }

    /// The nodes, in an order in which they can run.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    pub fn inputs(&self) -> &[Id] {
        &self.inputs
    }

    pub fn outputs(&self) -> &[Id] {
        &self.outputs
    }

    pub fn input(&mut self, name: &str, dtype: DType, shape: Vec<Dim>) -> Id {
        let id = self.push(name.to_owned(), dtype, shape, None);
        self.inputs.push(id);
        id
    }

    /// A new known tensor.
    ///
    /// # Errors
    /// When there are more or fewer bytes than the shape says, or the shape is open.
    pub fn known(
        &mut self,
        name: &str,
        dtype: DType,
        shape: &[u64],
        known: Known,
        bytes: impl Into<Arc<[u8]>>,
    ) -> Result<Id, GraphError> {
        let bytes = bytes.into();
        let expected = shape.iter().product::<u64>() as usize * dtype.bytes();
        if bytes.len() != expected {
            return Err(GraphError::Bytes { name: name.to_owned(), found: bytes.len(), expected });
        }
        let shape = shape.iter().map(|size| Dim::Fixed(*size)).collect();
        Ok(self.push(name.to_owned(), dtype, shape, Some(Data { known, bytes })))
    }

    /// A number, as a tensor without axes.
    pub fn number(&mut self, value: f32) -> Id {
        let name = self.fresh();
        self.push(
            name,
            DType::F32,
            Vec::new(),
            Some(Data { known: Known::Constant, bytes: value.to_le_bytes().into() }),
        )
    }

    /// A constant tensor of f32.
    pub fn floats(&mut self, shape: &[u64], values: &[f32]) -> Result<Id, GraphError> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let name = self.fresh();
        self.known(&name, DType::F32, shape, Known::Constant, bytes)
    }

    /// A constant tensor of i64.
    pub fn integers(&mut self, shape: &[u64], values: &[i64]) -> Result<Id, GraphError> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let name = self.fresh();
        self.known(&name, DType::I64, shape, Known::Constant, bytes)
    }

    /// A constant tensor of truth values, 0 or 1 each.
    pub fn truths(&mut self, shape: &[u64], values: Vec<u8>) -> Result<Id, GraphError> {
        let name = self.fresh();
        self.known(&name, DType::Bool, shape, Known::Constant, values)
    }

    pub fn node(&mut self, op: Op, ins: &[Id], place: &str) -> Result<Id, GraphError> {
        let operands: Vec<&GraphValue> = ins.iter().map(|id| &self.values[id.0]).collect();
        let (dtype, shape) = infer::infer(&op, &operands).map_err(|what| what.at(&op, &operands, place))?;
        let name = self.fresh();
        let out = self.push(name, dtype, shape, None);
        self.nodes.push(Node { op, ins: ins.to_vec(), out, place: place.to_owned() });
        Ok(out)
    }

    /// Names a value and answers with it.
    pub fn output(&mut self, id: Id, name: &str) {
        self.values[id.0].name = name.to_owned();
        self.outputs.push(id);
    }

    fn fresh(&self) -> String {
        format!("v{}", self.values.len())
    }

    fn push(&mut self, name: String, dtype: DType, shape: Vec<Dim>, data: Option<Data>) -> Id {
        self.values.push(GraphValue { name, dtype, shape, data });
        Id(self.values.len() - 1)
    }
}
