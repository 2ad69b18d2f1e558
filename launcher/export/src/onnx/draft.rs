//! A file while its nodes are assembled: names, tensors, and sizes that follow the batch.

use super::{cut::cuts, tensor::Initializer};
use crate::{
    ExportError,
    model::{halves, reserve},
    proto::Message,
    spelling::numbers,
};
use enn_common::graph::{DType, Dim, Graph, Id, Node, Op, infer::GraphError};
use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap, HashSet},
};

#[derive(Debug)]
pub(super) enum NodeAttribute {
    Int(&'static str, i64),
    Ints(&'static str, Vec<i64>),
    Float(&'static str, f32),
    Type(&'static str, DType),
}

#[derive(Debug)]
pub(super) struct OnnxDraft<'a> {
    pub graph: &'a Graph,
    pub nodes: Vec<Message>,
    pub tensors: Vec<Initializer<'a>>,
    names: HashSet<String>,
    /// Known tensors of the graph that are in the file.
    there: HashSet<Id>,
    /// Matrices that are stored, or computed, transposed.
    transposes: HashMap<Id, String>,
    /// Known matrices that are stored transposed only.
    pub only_transposed: HashSet<Id>,
    /// Products that are written as their slices.
    cuts: HashMap<Id, &'a Node>,
    /// Row ranges of known tensors by first row, number of rows, and whether they are transposed.
    parts: HashMap<(Id, u64, u64, bool), String>,
    /// Constants that the writer adds, by content.
    constants: HashMap<(DType, Vec<u64>, Vec<u8>), String>,
    /// Vectors of one element that hold a multiple of the batch.
    rows: BTreeMap<u64, String>,
    /// Name of the graph's node that is being written, and of its result.
    stem: String,
    result: String,
}

impl<'a> OnnxDraft<'a> {
    pub(super) fn new(graph: &'a Graph) -> Result<Self, ExportError> {
        let mut names = HashSet::new();
        for (_, value) in graph.values() {
            if value.name.is_empty() || !names.insert(value.name.clone()) {
                return Err(structure("value", &value.name, "a name of its own").into());
            }
        }
        let mut seen = HashSet::new();
        if let Some(id) = graph.outputs().iter().find(|id| !seen.insert(**id)) {
            return Err(structure("output", &graph.value(*id).name, "one that is answered once").into());
        }
        Ok(Self {
            graph,
            nodes: Vec::new(),
            tensors: Vec::new(),
            names,
            there: HashSet::new(),
            transposes: HashMap::new(),
            only_transposed: only_transposed(graph),
            cuts: cuts(graph),
            parts: HashMap::new(),
            constants: HashMap::new(),
            rows: BTreeMap::new(),
            stem: String::new(),
            result: String::new(),
        })
    }

    pub(super) fn begin(&mut self, at: usize, node: &Node) {
        let place = &node.place;
        let op = node.op.name();
        let named = place.strip_suffix(op).is_some_and(|before| before.is_empty() || before.ends_with('.'));
        self.stem = self.free(match place.as_str() {
            "" => format!("{op}_{at}"),
            place if named => format!("{place}_{at}"),
            place => format!("{place}.{op}_{at}"),
        });
        self.result.clone_from(&self.graph.value(node.out).name);
    }

    /// Adds the outputs to the file after the last node.
    pub(super) fn finish(&mut self) {
        for id in self.graph.outputs() {
            self.operand(*id);
        }
    }

    /// Returns the name of a value; a known one is added to the file at its first use.
    pub(super) fn operand(&mut self, id: Id) -> String {
        let value = self.graph.value(id);
        if let Some(data) = &value.data
            && self.there.insert(id)
        {
            let shape = value.shape.iter().map(|dim| dim.of(1)).collect();
            self.store(&value.name, value.dtype, shape, Cow::Borrowed(&data.bytes));
        }
        value.name.clone()
    }

    fn store(&mut self, name: &str, dtype: DType, shape: Vec<u64>, bytes: Cow<'a, [u8]>) {
        self.tensors.push(Initializer { name: name.to_owned(), dtype, shape, bytes });
    }

    /// Returns the name of a transposed matrix: stored so where nothing else needs the original, otherwise transposed by a node.
    pub(super) fn transposed_operand(&mut self, id: Id) -> String {
        if let Some(name) = self.transposes.get(&id) {
            return name.clone();
        }
        let value = self.graph.value(id);
        let name = self.free(format!("{}.T", value.name));
        match &value.data {
            Some(data) if self.only_transposed.contains(&id) => {
                let [rows, columns] = [0, 1].map(|axis| value.shape[axis].of(1));
                let bytes = transposed(&data.bytes, rows as usize, columns as usize, value.dtype.bytes());
                self.store(&name, value.dtype, vec![columns, rows], Cow::Owned(bytes));
            }
            _ => {
                let matrix = self.operand(id);
                self.node("Transpose", &name, &name, &[&matrix], &[NodeAttribute::Ints("perm", vec![1, 0])]);
            }
        }
        self.transposes.insert(id, name.clone());
        name
    }

    /// Returns the product that is written as its slices, by its result.
    pub(super) fn cut(&self, id: Id) -> Option<&'a Node> {
        self.cuts.get(&id).copied()
    }

    /// Returns the name of a row range of a known matrix or vector; `is_transposed` transposes it.
    pub(super) fn rows_of(&mut self, id: Id, start: u64, len: u64, is_transposed: bool) -> String {
        let key = (id, start, len, is_transposed);
        if let Some(name) = self.parts.get(&key) {
            return name.clone();
        }
        let value = self.graph.value(id);
        let end = if is_transposed { ".T" } else { "" };
        let name = self.free(format!("{}{end}[{start}:{}]", value.name, start + len));
        let width: u64 = value.shape[1..].iter().map(|dim| dim.of(1)).product();
        let row = width as usize * value.dtype.bytes();
        let bytes = value.data.as_ref().map_or(&[][..], |data| &data.bytes);
        let own = &bytes[start as usize * row..(start + len) as usize * row];
        let (shape, bytes) = match (value.shape.len(), is_transposed) {
            (1, _) => (vec![len], Cow::Borrowed(own)),
            (_, false) => (vec![len, width], Cow::Borrowed(own)),
            (_, true) => {
                let bytes = transposed(own, len as usize, width as usize, value.dtype.bytes());
                (vec![width, len], Cow::Owned(bytes))
            }
        };
        self.store(&name, value.dtype, shape, bytes);
        self.parts.insert(key, name.clone());
        name
    }

    /// Adds a number as a tensor without axes.
    pub(super) fn number(&mut self, dtype: DType, value: f32) -> String {
        let bytes = match dtype {
            DType::F16 | DType::Bf16 => halves(&[value], dtype),
            _ => value.to_le_bytes().to_vec(),
        };
        self.constant(dtype, Vec::new(), bytes)
    }

    pub(super) fn integers(&mut self, values: &[i64]) -> String {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.constant(DType::I64, vec![values.len() as u64], bytes)
    }

    fn constant(&mut self, dtype: DType, shape: Vec<u64>, bytes: Vec<u8>) -> String {
        let key = (dtype, shape, bytes);
        if let Some(name) = self.constants.get(&key) {
            return name.clone();
        }
        let name = self.free(format!("constant_{}", self.constants.len()));
        let (_, shape, bytes) = key.clone();
        self.store(&name, dtype, shape, Cow::Owned(bytes));
        self.constants.insert(key, name.clone());
        name
    }

    /// Adds a vector of one element with a multiple of the batch, read from an input's shape. `None` when no input has the batch.
    pub(super) fn rows(&mut self, times: u64) -> Option<String> {
        if let Some(name) = self.rows.get(&times) {
            return Some(name.clone());
        }
        if times != 1 {
            let batch = self.rows(1)?;
            let by = self.integers(&[times.cast_signed()]);
            return Some(self.remembered(times, "Mul", &[&batch, &by]));
        }
        let follows = |id: &Id| {
            let shape = &self.graph.value(*id).shape;
            shape.iter().enumerate().find_map(|(axis, dim)| match dim {
                Dim::Batch(times) => Some((*id, axis, *times)),
                Dim::Fixed(_) => None,
            })
        };
        // An input that has the batch itself needs no division.
        let (input, axis, of) = self.graph.inputs().iter().filter_map(follows).min_by_key(|(_, _, times)| *times)?;
        let input = self.operand(input);
        let axis = self.integers(&[axis as i64]);
        let sizes = self.free("batch.sizes".to_owned());
        self.node("Shape", &sizes, &sizes, &[&input], &[]);
        if of == 1 {
            return Some(self.remembered(1, "Gather", &[&sizes, &axis]));
        }
        let all = self.remembered(of, "Gather", &[&sizes, &axis]);
        let by = self.integers(&[of.cast_signed()]);
        Some(self.remembered(1, "Div", &[&all, &by]))
    }

    fn remembered(&mut self, times: u64, op: &str, ins: &[&str]) -> String {
        let name = self.free(format!("batch.times_{times}"));
        self.node(op, &name, &name, ins, &[]);
        self.rows.insert(times, name.clone());
        name
    }

    /// Adds an intermediate node; returns the name of its result.
    pub(super) fn part(&mut self, op: &str, ins: &[&str]) -> String {
        let name = self.free(format!("{}.{}", self.stem, op.to_lowercase()));
        self.node(op, &name, &name, ins, &[]);
        name
    }

    /// Concatenates vectors.
    pub(super) fn joined(&mut self, parts: &[&str]) -> String {
        let name = self.free(format!("{}.sizes", self.stem));
        self.node("Concat", &name, &name, parts, &[NodeAttribute::Int("axis", 0)]);
        name
    }

    /// Adds the node with the final result.
    pub(super) fn last(&mut self, op: &str, ins: &[&str], attributes: &[NodeAttribute]) {
        let stem = self.stem.clone();
        let result = self.result.clone();
        self.node(op, &stem, &result, ins, attributes);
    }

    fn node(&mut self, op: &str, name: &str, out: &str, ins: &[&str], attributes: &[NodeAttribute]) {
        let node = ins.iter().fold(Message::new(), |node, name| node.text(1, name));
        let node = node.text(2, out).text(3, name).text(4, op);
        self.nodes.push(node.messages(5, attributes.iter().map(NodeAttribute::message)));
    }

    /// Reserves `name`, with a number appended if it is taken.
    fn free(&mut self, name: String) -> String {
        reserve(&mut self.names, name, 2)
    }
}

impl NodeAttribute {
    fn message(&self) -> Message {
        let named = |name: &str| Message::new().text(1, name);
        match self {
            Self::Float(name, value) => named(name).float(2, *value).uint(20, 1),
            Self::Int(name, value) => named(name).int(3, *value).uint(20, 2),
            Self::Type(name, dtype) => named(name).uint(3, numbers(*dtype).onnx).uint(20, 2),
            Self::Ints(name, values) => named(name).ints(8, values).uint(20, 7),
        }
    }
}

fn structure(what: &'static str, found: &str, expected: &'static str) -> GraphError {
    GraphError::Structure { what, found: found.to_owned(), expected }
}

/// Returns the known matrices that only [`Op::Linear`]s with an input of more or fewer than two axes read.
fn only_transposed(graph: &Graph) -> HashSet<Id> {
    let mut transposed = HashSet::new();
    let mut as_they_are: HashSet<Id> = graph.outputs().iter().copied().collect();
    for node in graph.nodes() {
        for (at, id) in node.ins.iter().enumerate() {
            if node.op != Op::Linear || at != 1 {
                as_they_are.insert(*id);
            } else if graph.value(*id).data.is_some() && graph.value(node.ins[0]).shape.len() != 2 {
                transposed.insert(*id);
            }
        }
    }
    transposed.retain(|id| !as_they_are.contains(id));
    transposed
}

fn transposed(bytes: &[u8], rows: usize, columns: usize, size: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    for column in 0..columns {
        for row in 0..rows {
            out.extend_from_slice(&bytes[(row * columns + column) * size..][..size]);
        }
    }
    out
}
