//! A MIL program under construction: names, constants, operations.

use super::{
    OPSET, RANK_MAX, RESERVED, TARGET, WEIGHTS, is_name,
    mil::{self, Literal, MilKind, OpResult, Type},
    weights::{Weights, elements},
};
use crate::{
    ExportError,
    model::{halves, on_fewer_axes, open_axes, reserve},
    proto::Message,
};
use enn_common::graph::{DType, Dim, Graph, GraphValue, Id, shape_text};
use std::collections::{BTreeMap, HashSet};

/// The program's only block.
#[derive(Debug)]
pub(super) struct Block<'a> {
    pub(super) graph: &'a Graph,
    pub(super) weights: Weights<'a>,
    /// Names of the values that exist so far.
    pub(super) names: BTreeMap<Id, String>,
    taken: HashSet<String>,
    ops: Vec<Message>,
    /// Name of a tensor of one integer that holds the batch, once it was requested.
    batch: Option<String>,
}

/// An argument under the name of its parameter.
pub(super) type NamedArg<'n> = (&'static str, Arg<'n>);

/// Returns the operand of an operation with one.
pub(super) const fn x(name: &str) -> NamedArg<'_> {
    ("x", Arg::Name(name))
}

/// Returns the operands of an operation with two.
pub(super) const fn xy<'n>(x: &'n str, y: &'n str) -> [NamedArg<'n>; 2] {
    [("x", Arg::Name(x)), ("y", Arg::Name(y))]
}

pub(super) const fn cast(x: &str, to: MilKind) -> [NamedArg<'_>; 2] {
    [("x", Arg::Name(x)), ("dtype", Arg::Text(to.name()))]
}

pub(super) fn concat(values: Vec<String>, axis: usize) -> [NamedArg<'static>; 3] {
    [("values", Arg::Names(values)), ("axis", Arg::Int(axis as i32)), ("interleave", Arg::Bool(false))]
}

#[derive(Debug, Clone)]
pub(super) enum Arg<'n> {
    Name(&'n str),
    Names(Vec<String>),
    Int(i32),
    Ints(Vec<i32>),
    Bool(bool),
    Bools(Vec<bool>),
    Text(&'static str),
    /// A number of a floating-point element type, or i32.
    Number(MilKind, f32),
}

impl<'a> Block<'a> {
    pub(super) fn of(graph: &'a Graph) -> Result<Self, ExportError> {
        let mut block = Self {
            graph,
            weights: Weights::new(),
            names: BTreeMap::new(),
            taken: RESERVED.map(str::to_owned).into(),
            ops: Vec::new(),
            batch: None,
        };
        for (id, value) in graph.values() {
            block.fits(id, value)?;
        }
        for id in graph.inputs().iter().chain(graph.outputs()) {
            let name = &graph.value(*id).name;
            if !is_name(name) || !block.taken.insert(name.clone()) {
                let why = "names are letters, digits and _, no reserved word, and each stands for one port";
                return Err(refused(&format!("the port {name}"), "graph", why, "give the port another name"));
            }
        }
        for id in graph.inputs() {
            let value = graph.value(*id);
            let name = if MilKind::of(value.dtype) == MilKind::Bool {
                let ty = Type::new(MilKind::Bool, &value.shape);
                let name = block.fresh(&format!("{}_bool", value.name));
                block.op("cast", &cast(&value.name, MilKind::Bool), OpResult::new(&name, &ty));
                name
            } else {
                value.name.clone()
            };
            block.names.insert(*id, name);
        }
        Ok(block)
    }

    /// Checks that Core ML can hold a value.
    fn fits(&self, id: Id, value: &GraphValue) -> Result<(), ExportError> {
        // The node for the message: the one that makes the value, or for a constant or an input its first reader.
        let mut nodes = self.graph.nodes().iter();
        let node = nodes.clone().find(|node| node.out == id).or_else(|| nodes.find(|node| node.ins.contains(&id)));
        let (why, hint) = if value.shape.len() > RANK_MAX {
            let hint = node.map_or("onnx, which takes any number of axes".to_owned(), |node| on_fewer_axes(&node.op));
            ("values have at most five axes", hint)
        } else if value.shape.contains(&Dim::Fixed(0)) {
            ("values have at least one element", "leave out what is empty, or export it in pt2".to_owned())
        } else if value.data.is_some() && MilKind::of(value.dtype) == MilKind::I32 && small(value).is_none() {
            ("integers have 32 bits", "smaller numbers, or onnx, which has integers of 64 bits".to_owned())
        } else {
            return Ok(());
        };
        let (op, place) = node.map_or(("a port", "graph"), |node| (node.op.name(), &node.place));
        let what = format!("{op} of {} {}", value.dtype.name(), shape_text(&value.shape));
        Err(refused(&what, place, why, &hint))
    }

    /// Returns an unused name similar to `like`.
    pub(super) fn fresh(&mut self, like: &str) -> String {
        let mut name: String = like.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
            name.insert(0, '_');
        }
        reserve(&mut self.taken, name, 1)
    }

    /// Returns the name of a value; a known value becomes a constant at its first use.
    pub(super) fn name(&mut self, id: Id) -> String {
        if let Some(name) = self.names.get(&id) {
            return name.clone();
        }
        let value = self.graph.value(id);
        let name = self.fresh(&value.name);
        self.known(value, &value.shape, &name);
        self.names.insert(id, name.clone());
        name
    }

    /// Adds a constant with a known value's elements in a given shape.
    pub(super) fn known(&mut self, value: &'a GraphValue, shape: &[Dim], name: &str) {
        if let Some(at) = self.weights.place(value) {
            let ty = Type::new(MilKind::of(value.dtype), shape);
            let val = mil::stored(&ty, WEIGHTS, at);
            self.ops.push(mil::operation("const", &[], OpResult::new(name, &ty), Some(&val)));
            return;
        }
        let literal = match MilKind::of(value.dtype) {
            MilKind::I32 => Literal::Ints(small(value).expect("integers have been looked at")),
            MilKind::Bool => truths(&elements(value).iter().map(|byte| *byte != 0).collect::<Vec<_>>()),
            kind => Literal::Bytes(kind, elements(value).into_owned()),
        };
        self.literal(literal, shape, name);
    }

    fn literal(&mut self, literal: Literal, shape: &[Dim], name: &str) {
        let (ty, val) = literal.typed(shape);
        self.ops.push(mil::operation("const", &[], OpResult::new(name, &ty), Some(&val)));
    }

    /// Returns the names of an argument; an argument that is no name becomes a constant with a name similar to `like`.
    pub(super) fn argument(&mut self, like: &str, arg: &Arg<'_>) -> Vec<String> {
        let row = |len: usize| vec![Dim::Fixed(len as u64)];
        let (literal, shape) = match arg {
            Arg::Name(name) => return vec![(*name).to_owned()],
            Arg::Names(names) => return names.clone(),
            Arg::Int(value) => (Literal::Ints(vec![*value]), Vec::new()),
            Arg::Ints(values) => (Literal::Ints(values.clone()), row(values.len())),
            Arg::Bool(value) => (truths(&[*value]), Vec::new()),
            Arg::Bools(values) => (truths(values), row(values.len())),
            Arg::Text(text) => (Literal::Text(text), Vec::new()),
            Arg::Number(MilKind::F16, value) => {
                (Literal::Bytes(MilKind::F16, halves(&[*value], DType::F16)), Vec::new())
            }
            Arg::Number(MilKind::I32, value) => (Literal::Ints(vec![*value as i32]), Vec::new()),
            Arg::Number(_, value) => (Literal::Bytes(MilKind::F32, value.to_le_bytes().into()), Vec::new()),
        };
        let name = self.fresh(like);
        self.literal(literal, &shape, &name);
        vec![name]
    }

    /// Appends an operation with the result `out`, after the constants among its arguments.
    pub(super) fn op(&mut self, op: &str, args: &[NamedArg<'_>], out: OpResult<'_>) {
        let named =
            |(parameter, arg): &NamedArg<'_>| (*parameter, self.argument(&format!("{}_{parameter}", out.name), arg));
        let ins: Vec<_> = args.iter().map(named).collect();
        self.ops.push(mil::operation(op, &ins, out, None));
    }

    /// Appends an operation as [`Block::op`] does, with a fresh result name similar to `like.name`.
    pub(super) fn step(&mut self, op: &str, args: &[NamedArg<'_>], like: OpResult<'_>) -> String {
        let name = self.fresh(like.name);
        self.op(op, args, like.named(&name));
        name
    }

    /// Returns the name of a tensor of one integer that holds the batch.
    pub(super) fn batch(&mut self) -> Option<String> {
        if self.batch.is_none() {
            let (id, axis, _) = open_axes(self.graph).find(|(.., times)| *times == 1)?;
            let value = self.graph.value(id);
            let row = |len: u64| Type::new(MilKind::I32, &[Dim::Fixed(len)]);
            let sizes = row(value.shape.len() as u64);
            let shape = self.step("shape", &[x(&value.name)], OpResult::new("shape", &sizes));
            let args = [x(&shape), ("begin", Arg::Ints(vec![axis as i32])), ("end", Arg::Ints(vec![axis as i32 + 1]))];
            self.batch = Some(self.step("slice_by_index", &args, OpResult::new("batch", &row(1))));
        }
        self.batch.clone()
    }

    /// Returns the program's function with its outputs, each a result under its port's name. Booleans are output as integers.
    pub(super) fn function(mut self) -> (Message, Weights<'a>) {
        for id in self.graph.outputs() {
            let value = self.graph.value(*id);
            if self.names.get(id) == Some(&value.name) {
                continue;
            }
            let name = self.name(*id);
            let ty = port(value);
            let out = OpResult::new(&value.name, &ty);
            match MilKind::of(value.dtype) {
                MilKind::Bool => self.op("cast", &cast(&name, MilKind::I32), out),
                _ => self.op("identity", &[x(&name)], out),
            }
        }
        let block =
            self.graph.outputs().iter().fold(Message::new(), |block, id| block.text(2, &self.graph.value(*id).name));
        let block = block.messages(3, self.ops);
        let inputs = self.graph.inputs().iter().map(|id| self.graph.value(*id));
        let inputs = inputs.map(|value| mil::named(&value.name, &port(value)));
        (Message::new().messages(1, inputs).text(2, OPSET).message(3, &mil::entry(OPSET, &block)), self.weights)
    }
}

/// Returns the type of an input or output.
pub(super) fn port(value: &GraphValue) -> Type {
    let kind = match MilKind::of(value.dtype) {
        MilKind::Bool => MilKind::I32,
        kind => kind,
    };
    Type::new(kind, &value.shape)
}

fn truths(values: &[bool]) -> Literal {
    Literal::Bytes(MilKind::Bool, values.iter().map(|value| u8::from(*value)).collect())
}

/// Returns known integers, if all fit into 32 bits.
pub(super) fn small(value: &GraphValue) -> Option<Vec<i32>> {
    value.integers().into_iter().map(|value| value.try_into().ok()).collect()
}

/// Builds the error for a value or operation that the format cannot express.
pub(super) fn refused(what: &str, place: &str, why: &str, hint: &str) -> ExportError {
    let place = if place.is_empty() { "graph" } else { place };
    ExportError::unsupported(TARGET, what, place, why, hint)
}
