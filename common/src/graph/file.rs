//! A graph on disk: `graph.json` says what is computed, `graph.safetensors` holds what is known beforehand.

use super::{DType, Data, Dim, Graph, GraphValue, Id, Known, Node, infer::GraphError, infer::infer};
use crate::{
    fs::{FileError as WriteError, atomic, regular},
    keys,
};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, HashSet},
    path::{Path, PathBuf},
};

/// Of the file's form; a reader takes only its own.
const VERSION: u32 = 1;
/// The two files of a graph.
const STRUCTURE: &str = "graph.json";
const TENSORS: &str = "graph.safetensors";
/// Most that is read of each.
const STRUCTURE_BYTES_MAX: u64 = 1 << 30;
const TENSORS_BYTES_MAX: u64 = 1 << 40;
/// In front of the header of a safetensors file.
const LENGTH_BYTES: usize = 8;

/// A graph that cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum GraphFileError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error("{path}: {source}")]
    Json { path: PathBuf, source: serde_json::Error },
    #[error("{path}: {source}")]
    Tensors { path: PathBuf, source: safetensors::SafeTensorError },
    #[error("{path}: {source}")]
    Graph { path: PathBuf, source: GraphError },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct GraphRecord {
    version: u32,
    values: Vec<WrittenValue>,
    nodes: Vec<Node>,
    inputs: Vec<Id>,
    outputs: Vec<Id>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenValue {
    name: String,
    dtype: DType,
    shape: Vec<Dim>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    known: Option<Known>,
}

const fn dtype(of: DType) -> Dtype {
    match of {
        DType::F32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::Bf16 => Dtype::BF16,
        DType::I64 => Dtype::I64,
        DType::Bool => Dtype::BOOL,
    }
}

/// Writes a graph into a directory that is there.
pub fn write(graph: &Graph, dir: &Path) -> Result<(), GraphFileError> {
    let mut tensors = BTreeMap::new();
    for (_, value) in graph.values() {
        let Some(data) = &value.data else { continue };
        let shape = value.shape.iter().map(|dim| dim.of(1) as usize).collect();
        let view = TensorView::new(dtype(value.dtype), shape, &data.bytes);
        tensors.insert(
            value.name.clone(),
            view.map_err(|source| GraphFileError::Tensors { path: dir.join(TENSORS), source })?,
        );
    }
    let path = dir.join(TENSORS);
    safetensors::serialize_to_file(tensors, None, &path).map_err(|source| GraphFileError::Tensors { path, source })?;
    let values = graph.values().map(|(_, value)| WrittenValue {
        name: value.name.clone(),
        dtype: value.dtype,
        shape: value.shape.clone(),
        known: value.data.as_ref().map(|data| data.known),
    });
    let written = GraphRecord {
        version: VERSION,
        values: values.collect(),
        nodes: graph.nodes().to_vec(),
        inputs: graph.inputs().to_vec(),
        outputs: graph.outputs().to_vec(),
    };
    let path = dir.join(STRUCTURE);
    let json = serde_json::to_vec(&written).map_err(|source| GraphFileError::Json { path: path.clone(), source })?;
    Ok(atomic::write(&path, &json)?)
}

/// Digest of a graph, blake3 in hex: equal for equal functions with equal names.
pub fn digest(graph: &Graph) -> String {
    let mut hasher = blake3::Hasher::new();
    for (_, value) in graph.values() {
        hasher.update(format!("{} {} {}", value.name, value.dtype.name(), super::shape_text(&value.shape)).as_bytes());
        if let Some(data) = &value.data {
            hasher.update(&data.bytes);
        }
    }
    hasher.update(format!("{:?} {:?} {:?}", graph.nodes(), graph.inputs(), graph.outputs()).as_bytes());
    hasher.finalize().to_hex().to_string()
}

/// Reads a graph and checks it whole.
pub fn read(dir: &Path) -> Result<Graph, GraphFileError> {
    let path = dir.join(STRUCTURE);
    let tensors = dir.join(TENSORS);
    let load = |path: &Path, bytes_max| {
        regular::read(path, bytes_max)
            .map_err(|error| GraphFileError::Io { path: path.to_owned(), source: error.source })
    };
    let written: GraphRecord = serde_json::from_slice(&load(&path, STRUCTURE_BYTES_MAX)?)
        .map_err(|source| GraphFileError::Json { path: path.clone(), source })?;
    let bytes = load(&tensors, TENSORS_BYTES_MAX)?;
    let wrong = |source| GraphFileError::Tensors { path: tensors.clone(), source };
    let (header_bytes, _) = SafeTensors::read_metadata(&bytes).map_err(wrong)?;
    let loaded = SafeTensors::deserialize(&bytes).map_err(wrong)?;
    let rebuilt = match keys::twice(&bytes[LENGTH_BYTES..][..header_bytes]) {
        Some(name) => Err(structure("tensor", name, "a name of its own in graph.safetensors")),
        None => rebuilt(written, &loaded),
    };
    rebuilt.map_err(|source| GraphFileError::Graph { path, source })
}

fn structure(what: &'static str, found: impl ToString, expected: &'static str) -> GraphError {
    GraphError::Structure { what, found: found.to_string(), expected }
}

fn rebuilt(written: GraphRecord, tensors: &SafeTensors<'_>) -> Result<Graph, GraphError> {
    if written.version != VERSION {
        return Err(structure("version", written.version, "1"));
    }
    let mut graph = Graph::new();
    let mut names = HashSet::new();
    for value in written.values {
        if !names.insert(value.name.clone()) {
            return Err(structure("value", value.name, "a name of its own"));
        }
        let data = value.known.map(|known| data_of(&value, known, tensors)).transpose()?;
        graph.values.push(GraphValue { name: value.name, dtype: value.dtype, shape: value.shape, data });
    }
    // Whether a value is there when a node runs.
    let mut there: Vec<bool> = graph.values.iter().map(|value| value.data.is_some()).collect();
    for id in &written.inputs {
        match there.get_mut(id.0) {
            Some(there) if !*there => *there = true,
            _ => return Err(structure("input", id.0, "a value that is neither known nor given twice")),
        }
    }
    for node in &written.nodes {
        if let Some(id) = node.ins.iter().find(|id| !there.get(id.0).copied().unwrap_or(false)) {
            return Err(structure("operand", id.0, "a value that is there before its use"));
        }
        let ins: Vec<&GraphValue> = node.ins.iter().map(|id| &graph.values[id.0]).collect();
        let made = infer(&node.op, &ins).map_err(|expected| expected.at(&node.op, &ins, &node.place))?;
        match there.get_mut(node.out.0) {
            Some(there) if !*there => *there = true,
            _ => return Err(structure("result", node.out.0, "a value that nothing else gives")),
        }
        let out = &graph.values[node.out.0];
        if made != (out.dtype, out.shape.clone()) {
            return Err(structure("result", &out.name, "the shape and element type that its node gives"));
        }
    }
    if let Some(id) = written.outputs.iter().find(|id| !there.get(id.0).copied().unwrap_or(false)) {
        return Err(structure("output", id.0, "a value that something gives"));
    }
    graph.nodes = written.nodes;
    graph.inputs = written.inputs;
    graph.outputs = written.outputs;
    Ok(graph)
}

fn data_of(value: &WrittenValue, known: Known, tensors: &SafeTensors<'_>) -> Result<Data, GraphError> {
    let missing = |expected| structure("tensor", &value.name, expected);
    let view = tensors.tensor(&value.name).map_err(|_| missing("one in graph.safetensors"))?;
    let shape: Option<Vec<usize>> = value.shape.iter().map(|dim| dim.fixed().map(|size| size as usize)).collect();
    if view.dtype() != dtype(value.dtype) || shape.as_deref() != Some(view.shape()) {
        return Err(missing("the shape and element type of graph.safetensors"));
    }
    Ok(Data { known, bytes: view.data().into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Op, Unary};

    fn graph() -> Graph {
        let mut g = Graph::new();
        let x = g.input("x", DType::F32, vec![Dim::BATCH, Dim::Fixed(2)]);
        let bytes: Vec<u8> = [1.0_f32, 2.0, 3.0, 4.0].iter().flat_map(|v| v.to_le_bytes()).collect();
        let w = g.known("head.weight", DType::F32, &[2, 2], Known::Parameter, bytes).unwrap();
        let y = g.node(Op::Linear, &[x, w], "head").unwrap();
        let y = g.node(Op::Unary(Unary::Tanh), &[y], "head").unwrap();
        g.output(y, "y");
        g
    }

    #[test]
    fn a_graph_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        write(&graph(), dir.path()).unwrap();
        assert_eq!(read(dir.path()).unwrap(), graph());
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        write(&graph(), dir.path()).unwrap();
        let path = dir.path().join(STRUCTURE);
        let whole = std::fs::read_to_string(&path).unwrap();
        let cases = [
            (r#""version":1"#, r#""version":2"#, "version 2"),
            (r#""ins":[0,1]"#, r#""ins":[3,1]"#, "before its use"),
            (r#""ins":[0,1]"#, r#""ins":[99,1]"#, "before its use"),
            (r#""out":3"#, r#""out":0"#, "nothing else gives"),
            (r#""outputs":[3]"#, r#""outputs":[7]"#, "something gives"),
            ("head.weight", "head.other", "one in graph.safetensors"),
        ];
        for (from, to, said) in cases {
            assert!(whole.contains(from), "{from} in {whole}");
            std::fs::write(&path, whole.replacen(from, to, 1)).unwrap();
            let error = read(dir.path()).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
        std::fs::write(&path, whole).unwrap();
        // The same name twice in front: readers differ in which of the two they take.
        let path = dir.path().join(TENSORS);
        let bytes = std::fs::read(&path).unwrap();
        let entry = br#"{"head.weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"#;
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) + entry.len() as u64 - 1;
        std::fs::write(&path, [&length.to_le_bytes()[..], &entry[..], &bytes[9..]].concat()).unwrap();
        let error = read(dir.path()).unwrap_err().to_string();
        assert!(error.contains("tensor head.weight") && error.contains("a name of its own"), "{error}");
    }
}
