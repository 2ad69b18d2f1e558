//! The program of an archive: `models/model.json`, an `ExportedProgram` of PyTorch's export schema 8.

use super::{
    call::{Call, CallArgument, call},
    names::{Names, attributes},
    size::Sizes,
    tensors::is_parameter,
};
use crate::spelling::numbers;
use enn_common::graph::{Dim, Graph, Id, Known, Op};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// Version of the schema that is written; readers compare the first number.
const SCHEMA: (u64, u64) = (8, 17);
/// Module stack of every node: the root, without which the program cannot be converted back to a module.
const STACK: &str = "L__self__,,enn.Model";

pub(super) fn program(graph: &Graph, names: Names, sizes: &Sizes) -> Value {
    let mut writer = Writer { graph, names, sizes, nodes: Vec::new(), tensors: Map::new(), numbers: Map::new() };
    let multiples = writer.multiples();
    for node in graph.nodes() {
        let call = call(node, graph);
        writer.node(&call, node.out, &node.place, &multiples);
    }
    let outputs = writer.outputs();
    let (signature, inputs) = writer.signature(&outputs);
    let graph_module = json!({
        "graph": {
            "inputs": inputs,
            "outputs": outputs.iter().map(|name| tensor(name)).collect::<Vec<_>>(),
            "nodes": writer.nodes,
            "tensor_values": writer.tensors,
            "sym_int_values": writer.numbers,
            "sym_bool_values": {},
            "sym_float_values": {},
            "custom_obj_values": {},
            "is_single_tensor_return": false,
        },
        "signature": signature,
        "module_call_graph": [{ "fqn": "", "signature": root(graph, &writer.names) }],
        "metadata": {},
        "treespec_namedtuple_fields": {},
    });
    json!({
        "graph_module": graph_module,
        "opset_version": { "aten": 10 },
        "range_constraints": sizes.ranges(),
        "schema_version": { "major": SCHEMA.0, "minor": SCHEMA.1 },
        "verifiers": ["TRAINING"],
        "guards_code": [],
    })
}

struct Writer<'a> {
    graph: &'a Graph,
    names: Names,
    sizes: &'a Sizes,
    nodes: Vec<Value>,
    tensors: Map<String, Value>,
    numbers: Map<String, Value>,
}

/// Names of the values that are a multiple of the batch.
type Multiples = BTreeMap<u64, String>;

fn tensor(name: &str) -> Value {
    json!({ "as_tensor": { "name": name } })
}

fn number(name: &str) -> Value {
    json!({ "as_sym_int": { "as_name": name } })
}

/// Builds an argument; arguments after a `*` in the schema go by keyword only.
fn argument(name: &str, value: Value, by_name: bool) -> Value {
    json!({ "name": name, "arg": value, "kind": if by_name { 2 } else { 1 } })
}

impl Writer<'_> {
    fn push(&mut self, target: &str, inputs: Vec<Value>, output: Value, name: &str, place: &str) {
        self.nodes.push(json!({
            "target": target,
            "inputs": inputs,
            "outputs": [output],
            "metadata": { "nn_module_stack": STACK, "stack_trace": place },
            "name": name,
            "is_hop_single_tensor_return": null,
        }));
    }

    /// Adds nodes that read the batch and multiply it, for the shapes that need it.
    fn multiples(&mut self) -> Multiples {
        let mut wanted = BTreeSet::new();
        for node in self.graph.nodes() {
            if let Op::Reshape { shape } | Op::Expand { shape } = &node.op {
                wanted.extend(shape.iter().filter(|dim| self.sizes.is_open(**dim)).map(|dim| dim.of(1)));
            }
        }
        let mut multiples = Multiples::new();
        if wanted.is_empty() {
            return multiples;
        }
        let size = self.names.fresh("sym_size_int");
        let (source, axis, there) = self.sizes.source;
        let inputs = [("self", tensor(self.names.get(source))), ("dim", json!({ "as_int": axis }))];
        self.number("torch.ops.aten.sym_size.int", inputs, &size, there);
        let by = |number_of: &str, by: u64| [("a", number(number_of)), ("b", json!({ "as_int": by }))];
        let mut batch = size;
        if there > 1 {
            let part = self.names.fresh("batch");
            self.number("_operator.floordiv", by(&batch, there), &part, 1);
            batch = part;
        }
        for times in wanted.into_iter().filter(|times| *times > 1) {
            let name = self.names.fresh(&format!("{batch}_times_{times}"));
            self.number("_operator.mul", by(&batch, times), &name, times);
            multiples.insert(times, name);
        }
        multiples.insert(1, batch);
        multiples
    }

    /// Adds a node whose result is `times` the batch.
    fn number(&mut self, target: &str, given: [(&str, Value); 2], name: &str, times: u64) {
        let given = given.map(|(name, value)| argument(name, value, false)).to_vec();
        self.push(target, given, number(name), name, "batch");
        self.numbers.insert(name.to_owned(), self.sizes.size(Dim::Batch(times)));
    }

    fn node(&mut self, call: &Call<'_>, out: Id, place: &str, multiples: &Multiples) {
        let value = |argument: &CallArgument<'_>| self.value(argument, multiples);
        let inputs = call.arguments.iter();
        let inputs = inputs.map(|(name, a)| argument(name, value(a), matches!(a, CallArgument::Keyword(_)))).collect();
        let name = self.names.get(out).to_owned();
        self.push(&format!("torch.ops.aten.{}", call.target), inputs, tensor(&name), &name, place);
    }

    fn value(&self, argument: &CallArgument<'_>, multiples: &Multiples) -> Value {
        let name = |id: &Id| json!({ "name": self.names.get(*id) });
        match argument {
            CallArgument::Tensor(id) => json!({ "as_tensor": name(id) }),
            CallArgument::Tensors(ids) => json!({ "as_tensors": ids.iter().map(name).collect::<Vec<_>>() }),
            CallArgument::Behind(0, id) => json!({ "as_tensors": [name(id)] }),
            CallArgument::Behind(nothings, id) => {
                let mut list = vec![json!({ "as_none": true }); *nothings];
                list.push(json!({ "as_tensor": name(id) }));
                json!({ "as_optional_tensors": list })
            }
            CallArgument::Int(int) => json!({ "as_int": int }),
            CallArgument::Ints(ints) => json!({ "as_ints": ints }),
            CallArgument::Sizes(sizes) if sizes.iter().any(|dim| self.sizes.is_open(*dim)) => {
                let size = |dim: &Dim| match dim {
                    Dim::Batch(times) => json!({ "as_name": multiples[times] }),
                    Dim::Fixed(size) => json!({ "as_int": size }),
                };
                json!({ "as_sym_ints": sizes.iter().map(size).collect::<Vec<_>>() })
            }
            CallArgument::Sizes(sizes) => {
                json!({ "as_ints": sizes.iter().map(|d| d.of(self.sizes.hint)).collect::<Vec<_>>() })
            }
            CallArgument::Float(float) => json!({ "as_float": float }),
            CallArgument::Bool(bool) => json!({ "as_bool": bool }),
            CallArgument::Kind(dtype) => json!({ "as_scalar_type": numbers(*dtype).torch }),
            CallArgument::Keyword(text) => json!({ "as_string": text }),
        }
    }

    /// Returns the names of the outputs. An output that no node computes, or that appears twice, is copied.
    fn outputs(&mut self) -> Vec<String> {
        let computed: HashSet<Id> = self.graph.nodes().iter().map(|node| node.out).collect();
        let mut seen = HashSet::new();
        let mut outputs = Vec::new();
        for id in self.graph.outputs() {
            let name = self.names.get(*id).to_owned();
            if computed.contains(id) && seen.insert(id) {
                outputs.push(name);
                continue;
            }
            let copy = self.names.fresh(&name);
            let given = vec![argument("self", tensor(&name), false)];
            self.push("torch.ops.aten.clone.default", given, tensor(&copy), &copy, "output");
            self.tensors.insert(copy.clone(), self.sizes.meta(self.graph.value(*id), false));
            outputs.push(copy);
        }
        outputs
    }

    /// Returns the signature of inputs and outputs, and the inputs.
    fn signature(&mut self, outputs: &[String]) -> (Value, Vec<Value>) {
        let mut specs = Vec::new();
        let mut inputs = Vec::new();
        let order = [Known::Parameter, Known::Buffer, Known::Constant];
        let known = |kind| self.graph.values().filter(move |(_, v)| v.data.as_ref().is_some_and(|d| d.known == kind));
        for (id, value) in order.into_iter().flat_map(known) {
            let name = json!({ "name": self.names.get(id) });
            let fqn = attributes(&value.name);
            specs.push(match value.data.as_ref().map(|data| data.known) {
                Some(Known::Parameter) => json!({ "parameter": { "arg": name, "parameter_name": fqn } }),
                Some(Known::Buffer) => json!({ "buffer": { "arg": name, "buffer_name": fqn, "persistent": true } }),
                _ => json!({ "tensor_constant": { "arg": name, "tensor_constant_name": fqn } }),
            });
            inputs.push(json!({ "as_tensor": name }));
        }
        for id in self.graph.inputs() {
            let given = tensor(self.names.get(*id));
            specs.push(json!({ "user_input": { "arg": given } }));
            inputs.push(given);
        }
        let answers: Vec<Value> =
            outputs.iter().map(|name| json!({ "user_output": { "arg": tensor(name) } })).collect();
        for (id, value) in self.graph.values() {
            self.tensors.insert(self.names.get(id).to_owned(), self.sizes.meta(value, is_parameter(value)));
        }
        (json!({ "input_specs": specs, "output_specs": answers }), inputs)
    }
}

/// Returns the call signature: inputs by position; a single output as it is, several as a dictionary.
fn root(graph: &Graph, names: &Names) -> Value {
    let leaves = |count: usize| vec![json!({ "type": null, "context": null, "children_spec": [] }); count];
    let tree = |kind: &str, context: &str, children: Vec<Value>| json!({ "type": kind, "context": context, "children_spec": children });
    let spec = |tree: Value| json!([1, tree]).to_string();
    let positional = tree("builtins.tuple", "null", leaves(graph.inputs().len()));
    let given = tree("builtins.tuple", "null", vec![positional, tree("builtins.dict", "[]", Vec::new())]);
    let outputs: Vec<&str> = graph.outputs().iter().map(|id| graph.value(*id).name.as_str()).collect();
    let answer = match outputs.as_slice() {
        [_] => leaves(1).remove(0),
        several => tree("builtins.dict", &json!(several).to_string(), leaves(several.len())),
    };
    json!({
        "inputs": [],
        "outputs": [],
        "in_spec": spec(given),
        "out_spec": spec(answer),
        "forward_arg_names": graph.inputs().iter().map(|id| names.get(*id)).collect::<Vec<_>>(),
    })
}
