//! A GraphDef under construction: nodes with unique names, each constant once.

use crate::{
    model::{reserve, signed},
    proto::Message,
    spelling::numbers,
};
use enn_common::graph::{DType, Dim};
use std::collections::{HashMap, HashSet};

/// Name of a tensor, which is that of its node.
pub(super) type NodeName = String;

/// Limit of a protocol buffer in bytes.
pub(super) const BYTES_MAX: usize = i32::MAX as usize;

/// Version of the GraphDef's producer: TensorFlow 2.8, which has every operation used here.
const PRODUCER: u64 = 987;

/// Number of the `DataType` of shapes and axes.
const INT32: u64 = 3;

pub(super) enum AttrValue<'a> {
    Kind(DType),
    /// The element type of a shape or axis.
    Sizes,
    Int(i64),
    Bool(bool),
    /// Sizes, −1 where dynamic.
    Shape(&'a [Dim]),
    /// A tensor: element type, sizes, elements.
    Tensor(u64, &'a [u64], &'a [u8]),
}

use AttrValue::{Kind, Sizes};

impl AttrValue<'_> {
    fn message(&self) -> Message {
        match self {
            Kind(dtype) => Message::new().uint(6, numbers(*dtype).tensorflow),
            Sizes => Message::new().uint(6, INT32),
            Self::Int(value) => Message::new().int(3, *value),
            Self::Bool(value) => Message::new().uint(5, u64::from(*value)),
            Self::Shape(shape) => Message::new().message(7, &sizes(shape.iter().map(|dim| signed(*dim)))),
            Self::Tensor(kind, shape, bytes) => {
                let shape = sizes(shape.iter().map(|size| *size as i64));
                Message::new().message(8, &Message::new().uint(1, *kind).message(2, &shape).bytes(4, bytes))
            }
        }
    }
}

/// Builds a `TensorShapeProto`.
pub(super) fn sizes(shape: impl IntoIterator<Item = i64>) -> Message {
    Message::new().messages(2, shape.into_iter().map(|size| Message::new().int(1, size)))
}

pub(super) struct Nodes {
    graph: Message,
    taken: HashSet<NodeName>,
    numbers: HashMap<(u64, Vec<u64>, Vec<u8>), NodeName>,
    place: String,
}

impl Nodes {
    pub(super) fn new() -> Self {
        Self { graph: Message::new(), taken: HashSet::new(), numbers: HashMap::new(), place: String::new() }
    }

    /// Sets the place in the model of the next nodes, a dotted path.
    pub(super) fn enter(&mut self, place: &str) {
        self.place = place.replace('.', "/");
    }

    /// Adds a node below the place; attributes must be sorted by name.
    pub(super) fn node(&mut self, op: &str, ins: &[&NodeName], attributes: &[(&str, AttrValue<'_>)]) -> NodeName {
        let place = if self.place.is_empty() { op.to_owned() } else { format!("{}/{op}", self.place) };
        self.named(&place, op, ins, attributes)
    }

    /// Adds a node with this name, or a similar one where it is taken.
    pub(super) fn named(
        &mut self,
        name: &str,
        op: &str,
        ins: &[&NodeName],
        attributes: &[(&str, AttrValue<'_>)],
    ) -> NodeName {
        let name = self.fresh(name);
        let mut node = Message::new().text(1, &name).text(2, op);
        for input in ins {
            node = node.text(3, input);
        }
        let entry = |(key, value): &(&str, AttrValue<'_>)| Message::new().text(1, key).message(2, &value.message());
        let node = node.messages(5, attributes.iter().map(entry));
        self.graph = std::mem::take(&mut self.graph).message(1, &node);
        name
    }

    pub(super) fn known(&mut self, name: &str, dtype: DType, shape: &[u64], bytes: &[u8]) -> NodeName {
        let value = AttrValue::Tensor(numbers(dtype).tensorflow, shape, bytes);
        self.named(name, "Const", &[], &[("dtype", Kind(dtype)), ("value", value)])
    }

    /// Adds a number in an element type.
    pub(super) fn number(&mut self, dtype: DType, value: f64) -> NodeName {
        let bytes = match dtype {
            DType::F32 => (value as f32).to_le_bytes().to_vec(),
            DType::F16 => half::f16::from_f64(value).to_le_bytes().to_vec(),
            DType::Bf16 => half::bf16::from_f64(value).to_le_bytes().to_vec(),
            DType::I64 => (value as i64).to_le_bytes().to_vec(),
            DType::Bool => vec![u8::from(value != 0.0)],
        };
        self.shared(numbers(dtype).tensorflow, Kind(dtype), &[], bytes)
    }

    /// Adds a vector of sizes or axes.
    pub(super) fn row(&mut self, values: &[i64]) -> NodeName {
        self.shared(INT32, Sizes, &[values.len() as u64], narrow(values))
    }

    pub(super) fn size(&mut self, value: i64) -> NodeName {
        self.shared(INT32, Sizes, &[], narrow(&[value]))
    }

    fn shared(&mut self, number: u64, kind: AttrValue<'_>, shape: &[u64], bytes: Vec<u8>) -> NodeName {
        let key = (number, shape.to_vec(), bytes);
        if let Some(name) = self.numbers.get(&key) {
            return name.clone();
        }
        let value = AttrValue::Tensor(number, shape, &key.2);
        let name = self.named("constant", "Const", &[], &[("dtype", kind), ("value", value)]);
        self.numbers.insert(key, name.clone());
        name
    }

    pub(super) fn into_graph(self) -> Message {
        self.graph.message(4, &Message::new().uint(1, PRODUCER))
    }

    /// Reserves a valid TensorFlow name that no node has.
    fn fresh(&mut self, like: &str) -> NodeName {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "._/-".contains(c);
        let clean: String = like.chars().map(|c| if allowed(c) { c } else { '_' }).collect();
        let first = clean.chars().next().is_some_and(|c| c.is_ascii_alphanumeric() || c == '.');
        let clean = if first { clean } else { format!("n{clean}") };
        reserve(&mut self.taken, clean, 1)
    }
}

/// Encodes numbers as int32. Sizes of tensors that fit into a protocol buffer fit into it.
fn narrow(values: &[i64]) -> Vec<u8> {
    values.iter().flat_map(|value| (*value as i32).to_le_bytes()).collect()
}
