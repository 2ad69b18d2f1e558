//! The check that libtorch can follow an archive. Libtorch's own runtime trusts its input: an archive that contradicts itself
//! crashes it, and a table may ask it to unpickle.
//!
//! **Invariant:** an accepted archive names no value before it exists, has every tensor it names, in storages that are long enough, and
//! contains nothing pickled.

use super::MODEL;
use crate::ExportError;
use enn_common::{
    checkpoint::zip::{self, Record},
    fs::mmap::ReadMap,
};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use std::{
    collections::{BTreeMap, HashSet},
    path::Path,
};

const JSON_BYTES_MAX: usize = 256 << 20;
const SCHEMA_MAJOR: u64 = 8;

#[derive(Deserialize)]
struct Program {
    graph_module: GraphModule,
    schema_version: Version,
}

#[derive(Deserialize)]
struct Version {
    major: u64,
}

#[derive(Deserialize)]
struct GraphModule {
    graph: Graph,
    signature: Signature,
    module_call_graph: Vec<Module>,
}

#[derive(Deserialize)]
struct Graph {
    inputs: Vec<Argument>,
    outputs: Vec<Argument>,
    nodes: Vec<Node>,
    tensor_values: BTreeMap<String, Meta>,
    sym_int_values: BTreeMap<String, Size>,
}

#[derive(Deserialize)]
struct Node {
    target: String,
    inputs: Vec<Named>,
    outputs: Vec<Argument>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
    arg: Argument,
}

#[derive(Deserialize, PartialEq, Clone)]
struct Name {
    name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(dead_code, reason = "as in an argument")]
enum Number {
    AsName(String),
    AsInt(i64),
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(dead_code, reason = "as in an argument")]
enum Optional {
    AsTensor(Name),
    AsNone(bool),
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(
    dead_code,
    clippy::enum_variant_names,
    reason = "values other than names are read for their type alone; names are the schema's"
)]
enum Argument {
    AsNone(bool),
    AsTensor(Name),
    AsTensors(Vec<Name>),
    AsOptionalTensors(Vec<Optional>),
    AsInt(i64),
    AsInts(Vec<i64>),
    AsFloat(serde_json::Value),
    AsBool(bool),
    AsString(String),
    AsSymInt(Number),
    AsSymInts(Vec<Number>),
    AsScalarType(u8),
    AsMemoryFormat(u8),
    AsLayout(u8),
    AsDevice(IgnoredAny),
}

#[derive(Deserialize)]
struct Signature {
    input_specs: Vec<Input>,
    output_specs: Vec<Output>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(clippy::enum_variant_names, reason = "names are the schema's")]
enum Input {
    Parameter { arg: Name, parameter_name: String },
    Buffer { arg: Name, buffer_name: String, persistent: bool },
    TensorConstant { arg: Name, tensor_constant_name: String },
    UserInput { arg: Argument },
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Output {
    UserOutput { arg: Argument },
}

#[derive(Deserialize)]
struct Module {
    fqn: String,
    signature: Option<CallSignature>,
}

#[derive(Deserialize)]
struct CallSignature {
    in_spec: String,
    out_spec: String,
}

#[derive(Deserialize)]
struct Tree {
    #[serde(rename = "type")]
    kind: Option<String>,
    children_spec: Vec<Self>,
}

#[derive(Deserialize)]
struct Config {
    config: BTreeMap<String, TensorRow>,
}

#[derive(Deserialize)]
struct TensorRow {
    path_name: String,
    use_pickle: bool,
    tensor_meta: Meta,
}

#[derive(Deserialize)]
struct Meta {
    dtype: u8,
    sizes: Vec<Size>,
    strides: Vec<Size>,
    storage_offset: Size,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Size {
    AsInt(u64),
    AsExpr(IgnoredAny),
}

/// Checks a whole archive, including its checksums.
///
/// # Errors
/// The first contradiction found.
pub fn check(path: &Path) -> Result<(), ExportError> {
    let map = ReadMap::open(path)?;
    let refuse = |why: String| ExportError::refused("enn", path, why);
    let records = zip::records(map.bytes()).map_err(|error| refuse(error.to_string()))?;
    Archive { bytes: map.bytes(), records }.check().map_err(refuse)
}

struct Archive<'a> {
    bytes: &'a [u8],
    records: Vec<Record>,
}

type Checked<T = ()> = Result<T, String>;

impl Archive<'_> {
    fn check(&self) -> Checked {
        if let Some(record) = self.records.iter().find(|record| !record.is_whole(self.bytes)) {
            return Err(format!("its record {} is damaged", record.name));
        }
        let program: Program = self.json(&format!("models/{MODEL}.json"))?;
        if program.schema_version.major != SCHEMA_MAJOR {
            return Err(format!("its schema is {}, expected {SCHEMA_MAJOR}", program.schema_version.major));
        }
        let module = program.graph_module;
        check_nodes(&module.graph)?;
        let weights = self.tensors("weights")?;
        let constants = self.tensors("constants")?;
        check_signature(&module, &weights, &constants)
    }

    fn record(&self, name: &str) -> Checked<&Record> {
        let first = self.records.first().and_then(|record| record.name.split('/').next()).unwrap_or_default();
        let full = format!("{first}/{name}");
        self.records.iter().find(|record| record.name == full).ok_or_else(|| format!("it has no record {name}"))
    }

    fn json<T: DeserializeOwned>(&self, name: &str) -> Checked<T> {
        let record = self.record(name)?;
        if record.at.len() > JSON_BYTES_MAX {
            return Err(format!("{name} has {} bytes, at most {JSON_BYTES_MAX} are read", record.at.len()));
        }
        serde_json::from_slice(&self.bytes[record.at.clone()]).map_err(|error| format!("{name}: {error}"))
    }

    /// Returns the names of a folder's tensors, each with a storage that holds it.
    fn tensors(&self, folder: &str) -> Checked<HashSet<String>> {
        let table: Config = self.json(&format!("data/{folder}/{MODEL}_{folder}_config.json"))?;
        for (name, row) in &table.config {
            if row.use_pickle {
                return Err(format!("its tensor {name} is pickled"));
            }
            let place = format!("data/{folder}/{}", row.path_name);
            let held = self.record(&place)?.at.len() as u64;
            let needed = row.tensor_meta.bytes().ok_or_else(|| format!("its tensor {name} has no size"))?;
            if needed > held {
                return Err(format!("its tensor {name} needs {needed} bytes, {place} has {held}"));
            }
        }
        Ok(table.config.into_keys().collect())
    }
}

impl Meta {
    /// Returns the bytes of a storage up to the last element.
    fn bytes(&self) -> Option<u64> {
        let width = match self.dtype {
            1 | 2 | 12 => 1,
            3 | 6 | 13 => 2,
            4 | 7 => 4,
            5 | 8 => 8,
            _ => return None,
        };
        let known = |size: &Size| if let Size::AsInt(size) = size { Some(*size) } else { None };
        let sizes: Vec<u64> = self.sizes.iter().map(known).collect::<Option<_>>()?;
        let strides: Vec<u64> = self.strides.iter().map(known).collect::<Option<_>>()?;
        if sizes.len() != strides.len() {
            return None;
        }
        if sizes.contains(&0) {
            return Some(0);
        }
        let mut last = known(&self.storage_offset)?;
        for (size, stride) in sizes.iter().zip(strides) {
            last = last.checked_add((size - 1).checked_mul(stride)?)?;
        }
        last.checked_add(1)?.checked_mul(width)
    }
}

impl Number {
    fn name(&self) -> Option<&str> {
        if let Self::AsName(name) = self { Some(name) } else { None }
    }
}

impl Optional {
    fn name(&self) -> Option<&str> {
        if let Self::AsTensor(tensor) = self { Some(&tensor.name) } else { None }
    }
}

impl Argument {
    /// Returns the names of values in the argument.
    fn names(&self) -> Vec<&str> {
        match self {
            Self::AsTensor(tensor) => vec![&tensor.name],
            Self::AsTensors(tensors) => tensors.iter().map(|tensor| tensor.name.as_str()).collect(),
            Self::AsOptionalTensors(tensors) => tensors.iter().filter_map(Optional::name).collect(),
            Self::AsSymInt(one) => one.name().into_iter().collect(),
            Self::AsSymInts(many) => many.iter().filter_map(Number::name).collect(),
            _ => Vec::new(),
        }
    }
}

/// Checks that nodes name only existing values, and define only new and described ones.
fn check_nodes(graph: &Graph) -> Checked {
    let mut there = HashSet::new();
    graph.inputs.iter().try_for_each(|input| give(graph, &mut there, input))?;
    let named = |there: &HashSet<&str>, argument: &Argument, target: &str| {
        let strange = argument.names().into_iter().find(|name| !there.contains(*name));
        strange.map_or(Ok(()), |name| Err(format!("its {target} names {name}, which is not there")))
    };
    for node in &graph.nodes {
        let operator = node.target.starts_with("_operator.");
        if !operator && !node.target.starts_with("torch.ops.aten.") {
            return Err(format!("it calls {}, expected operators of aten", node.target));
        }
        if operator && !node.inputs.iter().map(|input| input.name.as_str()).eq(["a", "b"]) {
            return Err(format!("its {} has other arguments than a and b", node.target));
        }
        node.inputs.iter().try_for_each(|input| named(&there, &input.arg, &node.target))?;
        if node.outputs.iter().all(|output| output.names().is_empty()) {
            return Err(format!("its {} gives nothing", node.target));
        }
        node.outputs.iter().try_for_each(|output| give(graph, &mut there, output))?;
    }
    graph.outputs.iter().try_for_each(|output| named(&there, output, "answer"))
}

/// Records the values that an argument defines.
fn give<'g>(graph: &Graph, there: &mut HashSet<&'g str>, argument: &'g Argument) -> Checked {
    for name in argument.names() {
        let described = match argument {
            Argument::AsSymInt(_) => graph.sym_int_values.contains_key(name),
            _ => graph.tensor_values.contains_key(name),
        };
        if !described {
            return Err(format!("its value {name} is not described"));
        }
        if !there.insert(name) {
            return Err(format!("its value {name} is given twice"));
        }
    }
    Ok(())
}

/// Checks that the signature is that of the graph, with existing tensors and trees that have as many leaves.
fn check_signature(module: &GraphModule, weights: &HashSet<String>, constants: &HashSet<String>) -> Checked {
    let mut given = 0;
    let mut names = Vec::new();
    for input in &module.signature.input_specs {
        let (name, held) = match input {
            Input::Parameter { arg, parameter_name } => (&arg.name, Some((parameter_name, weights))),
            Input::Buffer { arg, buffer_name, persistent: true } => (&arg.name, Some((buffer_name, weights))),
            Input::Buffer { arg, buffer_name, .. } => (&arg.name, Some((buffer_name, constants))),
            Input::TensorConstant { arg, tensor_constant_name } => (&arg.name, Some((tensor_constant_name, constants))),
            Input::UserInput { arg: Argument::AsTensor(tensor) } => (&tensor.name, None),
            Input::UserInput { .. } => return Err("an input is no tensor".to_owned()),
        };
        if let Some((tensor, held)) = held
            && !held.contains(tensor)
        {
            return Err(format!("its tensor {tensor} is in no table"));
        }
        given += usize::from(held.is_none());
        names.push(name.as_str());
    }
    if !module.graph.inputs.iter().flat_map(Argument::names).eq(names) {
        return Err("its signature has other inputs than its graph".to_owned());
    }
    let answers = module.signature.output_specs.iter().flat_map(|Output::UserOutput { arg }| arg.names());
    if !module.graph.outputs.iter().flat_map(Argument::names).eq(answers) {
        return Err("its signature has other outputs than its graph".to_owned());
    }
    let whole = module.module_call_graph.iter().find(|module| module.fqn.is_empty());
    let call = whole.and_then(|whole| whole.signature.as_ref()).ok_or("it does not describe its call")?;
    for (spec, what, expected) in
        [(&call.in_spec, "inputs", given), (&call.out_spec, "outputs", module.graph.outputs.len())]
    {
        let (_, tree): (u64, Tree) = serde_json::from_str(spec).map_err(|error| format!("its {what}: {error}"))?;
        let found = leaves(&tree);
        if found != expected {
            return Err(format!("its call has {found} {what}, its graph {expected}"));
        }
    }
    Ok(())
}

fn leaves(tree: &Tree) -> usize {
    if tree.kind.is_none() { 1 } else { tree.children_spec.iter().map(leaves).sum() }
}
