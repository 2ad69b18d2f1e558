//! Small graphs that together hold every operation in every form that the worker makes, for testing the writers.

use crate::model::halves;
use enn_common::graph::{
    Binary, Compare, DType, Dim, Fold, Graph, Id, Known, Op, Unary,
    eval::{self, Array},
    infer::GraphError,
};

mod edges;

pub use edges::edges;

type Built = Result<Graph, GraphError>;
type NodeResult = Result<Id, GraphError>;

const UNARY: [Unary; 9] = [
    Unary::Neg,
    Unary::Exp,
    Unary::Log,
    Unary::Sqrt,
    Unary::Abs,
    Unary::Sigmoid,
    Unary::Tanh,
    Unary::Gelu,
    Unary::GeluTanh,
];
const BINARY: [Binary; 6] = [Binary::Add, Binary::Sub, Binary::Mul, Binary::Div, Binary::Max, Binary::Min];
const COMPARE: [Compare; 4] = [Compare::Less, Compare::LessEqual, Compare::Greater, Compare::GreaterEqual];
const FOLD: [Fold; 3] = [Fold::Sum, Fold::Mean, Fold::Max];

#[derive(Debug)]
pub struct Sample {
    /// Name of the operation and its form.
    pub name: String,
    pub graph: Graph,
}

impl Sample {
    /// Returns inputs of `batch` rows in the graph's order, and its outputs; both are representable in f32, or whole numbers.
    ///
    /// # Panics
    /// The graph cannot be computed.
    pub fn case(&self, batch: usize) -> (Vec<Array>, Vec<Array>) {
        let mut at = 0_u64;
        let mut next = move || {
            // A Weyl sequence: spread over 0.1 … 2 without repetition.
            at += 1;
            let unit = (at as f64 * 0.618_033_988_749_895).fract();
            f64::from((0.1 + 1.9 * unit) as f32)
        };
        let inputs: Vec<Array> = self
            .graph
            .inputs()
            .iter()
            .map(|id| {
                let shape: Vec<usize> =
                    self.graph.value(*id).shape.iter().map(|dim| dim.of(batch as u64) as usize).collect();
                let whole = self.graph.value(*id).dtype == DType::I64;
                let number = |_| if whole { next().trunc() } else { next() };
                let values = (0..shape.iter().product::<usize>()).map(number).collect();
                Array::new(&shape, values)
            })
            .collect();
        let outputs = eval::run(&self.graph, &inputs, batch);
        (inputs, outputs)
    }
}

/// Returns the same function in half precision: known and computed floats are `to`, inputs and outputs stay f32.
///
/// # Errors
/// An operation does not support it.
pub fn halved(graph: &Graph, to: DType) -> Built {
    let mut half = Graph::new();
    let mut ids: Vec<Option<Id>> = vec![None; graph.values().count()];
    for (id, value) in graph.values() {
        let Some(data) = &value.data else { continue };
        let shape = value.fixed().unwrap_or_default();
        // A constant's number may equal that of one of the new graph's values.
        let name = if data.known == Known::Constant { format!("{}.half", value.name) } else { value.name.clone() };
        ids[id.0] = Some(if value.dtype == DType::F32 {
            half.known(&name, to, &shape, data.known, halves(&value.floats(), to))?
        } else {
            half.known(&name, value.dtype, &shape, data.known, data.bytes.clone())?
        });
    }
    for id in graph.inputs() {
        let value = graph.value(*id);
        let input = half.input(&value.name, value.dtype, value.shape.clone());
        ids[id.0] = Some(half.node(Op::Cast { to }, &[input], "input")?);
    }
    for node in graph.nodes() {
        let op = match &node.op {
            Op::Cast { to: DType::F32 } => Op::Cast { to },
            op => op.clone(),
        };
        let ins: Vec<Id> = node.ins.iter().filter_map(|id| ids[id.0]).collect();
        ids[node.out.0] = Some(half.node(op, &ins, &node.place)?);
    }
    for id in graph.outputs() {
        let inside: Vec<Id> = ids[id.0].into_iter().collect();
        let out = half.node(Op::Cast { to: DType::F32 }, &inside, "output")?;
        half.output(out, &graph.value(*id).name);
    }
    Ok(half)
}

struct Samples(Vec<Sample>);

impl Samples {
    fn add(&mut self, name: impl Into<String>, graph: Built) {
        let name = name.into();
        let graph = graph.unwrap_or_else(|error| panic!("{name}: {error}"));
        self.0.push(Sample { name, graph });
    }

    /// Adds a function of one input.
    fn one(&mut self, name: impl Into<String>, shape: &[u64], f: impl FnOnce(&mut Graph, Id) -> NodeResult) {
        self.add(name, one(shape, f));
    }

    /// Adds a function of two inputs.
    fn two(&mut self, name: impl Into<String>, a: &[u64], b: &[u64], f: impl FnOnce(&mut Graph, Id, Id) -> NodeResult) {
        let mut g = Graph::new();
        let a = g.input("a", DType::F32, batched(a));
        let b = g.input("b", DType::F32, batched(b));
        let graph = f(&mut g, a, b).map(|y| {
            g.output(y, "y");
            g
        });
        self.add(name, graph);
    }
}

/// Returns all samples.
///
/// # Panics
/// A graph contradicts itself, which a test of this file would notice.
pub fn samples() -> Vec<Sample> {
    let mut all = Samples(Vec::new());
    for f in UNARY {
        all.one(Op::Unary(f).name(), &[3, 4], |g, x| g.node(Op::Unary(f), &[x], "m.unary"));
    }
    for f in BINARY {
        let op = Op::Binary(f);
        all.two(op.name(), &[3, 4], &[3, 4], |g, a, b| g.node(op.clone(), &[a, b], "m.binary"));
        let name = format!("{} with a row", op.name());
        all.one(name, &[3, 4], |g, x| {
            let row = g.floats(&[4], &[0.5, -1.0, 2.0, 3.0])?;
            g.node(op.clone(), &[row, x], "m")
        });
        let name = format!("{} with a number", op.name());
        all.one(name, &[3], |g, x| {
            let n = g.number(1.5);
            g.node(op.clone(), &[x, n], "m")
        });
        let name = format!("{} stretched both ways", op.name());
        all.two(name, &[1, 4], &[3, 1], |g, a, b| g.node(op.clone(), &[a, b], "m"));
    }
    for f in COMPARE {
        all.two(Op::Compare(f).name(), &[5], &[5], |g, a, b| {
            let t = g.node(Op::Compare(f), &[a, b], "m")?;
            float(g, t)
        });
        all.one(format!("{} a number", Op::Compare(f).name()), &[5], |g, x| {
            let n = g.number(1.0);
            let t = g.node(Op::Compare(f), &[x, n], "m")?;
            float(g, t)
        });
    }
    logic(&mut all);
    products(&mut all);
    layouts(&mut all);
    gathers(&mut all);
    for fold in FOLD {
        for (axes, keep) in [(vec![1], false), (vec![2], true), (vec![1, 2], false), (vec![1, 2], true)] {
            let op = Op::Reduce { fold, axes, keep };
            all.one(format!("{op:?}"), &[3, 4], |g, x| g.node(op.clone(), &[x], "m.reduce"));
        }
    }
    all.add("a small model", model());
    all.0
}

/// Returns the shape of a batch, (B, *shape).
fn batched(shape: &[u64]) -> Vec<Dim> {
    [Dim::BATCH].into_iter().chain(shape.iter().map(|size| Dim::Fixed(*size))).collect()
}

fn one(shape: &[u64], f: impl FnOnce(&mut Graph, Id) -> NodeResult) -> Built {
    let mut g = Graph::new();
    let x = g.input("x", DType::F32, batched(shape));
    let y = f(&mut g, x)?;
    g.output(y, "y");
    Ok(g)
}

fn float(g: &mut Graph, x: Id) -> NodeResult {
    g.node(Op::Cast { to: DType::F32 }, &[x], "m.cast")
}

fn above(g: &mut Graph, x: Id, bound: f32) -> NodeResult {
    let bound = g.number(bound);
    g.node(Op::Compare(Compare::Greater), &[x, bound], "m")
}

/// Returns fixed numbers in −1 … 1.
fn weights(count: u64) -> Vec<f32> {
    (0..count).map(|i| ((i as f64 * 0.754_877_666_246_693).fract() * 2.0 - 1.0) as f32).collect()
}

fn parameter(g: &mut Graph, name: &str, shape: &[u64]) -> NodeResult {
    let bytes: Vec<u8> = weights(shape.iter().product()).iter().flat_map(|v| v.to_le_bytes()).collect();
    g.known(name, DType::F32, shape, Known::Parameter, bytes)
}

fn logic(all: &mut Samples) {
    all.two("and, not", &[5], &[5], |g, a, b| {
        let a = above(g, a, 0.7)?;
        let b = above(g, b, 1.3)?;
        let not = g.node(Op::Not, &[b], "m")?;
        let both = g.node(Op::And, &[a, not], "m")?;
        float(g, both)
    });
    all.two("where", &[3, 4], &[3, 4], |g, a, b| {
        let test = above(g, a, 1.0)?;
        g.node(Op::Where, &[test, a, b], "m")
    });
    all.one("where with a number, stretched", &[3, 4], |g, x| {
        let column = g.node(Op::Slice { axis: 2, start: 0, len: 1 }, &[x], "m")?;
        let test = above(g, column, 1.0)?;
        let n = g.number(-7.0);
        g.node(Op::Where, &[test, x, n], "m")
    });
    all.one("where by a known mask", &[2], |g, x| {
        let mask = g.known("mask", DType::Bool, &[2], Known::Constant, vec![1, 0])?;
        let n = g.number(f32::NAN);
        let marked = g.node(Op::Where, &[mask, x, n], "m")?;
        let size = g.node(Op::Unary(Unary::Abs), &[marked], "m")?;
        let most = g.number(f32::MAX);
        let finite = g.node(Op::Compare(Compare::LessEqual), &[size, most], "m")?;
        let zero = g.number(0.0);
        g.node(Op::Where, &[finite, x, zero], "m")
    });
    all.one("cast to integers and back", &[6], |g, x| {
        let by = g.number(10.0);
        let x = g.node(Op::Binary(Binary::Mul), &[x, by], "m")?;
        let whole = g.node(Op::Cast { to: DType::I64 }, &[x], "m")?;
        let two = g.integers(&[], &[2])?;
        let whole = g.node(Op::Binary(Binary::Add), &[whole, two], "m")?;
        float(g, whole)
    });
}

fn products(all: &mut Samples) {
    for (name, a, b) in [
        ("matmul", vec![3, 4], vec![4, 2]),
        ("matmul of heads", vec![2, 3, 4], vec![2, 4, 5]),
        ("matmul stretched", vec![1, 3, 4], vec![2, 4, 5]),
    ] {
        all.two(name, &a, &b, |g, a, b| g.node(Op::MatMul, &[a, b], "m.matmul"));
    }
    all.one("matmul with a known matrix in front", &[2, 4, 3], |g, x| {
        let by = g.floats(&[2, 4, 4], &weights(32))?;
        g.node(Op::MatMul, &[by, x], "m")
    });
    for (shape, bias) in [(vec![6], true), (vec![3, 6], true), (vec![2, 3, 6], false)] {
        all.one(format!("linear of {} axes", shape.len() + 1), &shape, |g, x| {
            let w = parameter(g, "m.linear.weight", &[5, 6])?;
            let mut ins = vec![x, w];
            if bias {
                ins.push(parameter(g, "m.linear.bias", &[5])?);
            }
            g.node(Op::Linear, &ins, "m.linear")
        });
    }
    all.one("layer norm", &[3, 6], |g, x| {
        let w = parameter(g, "m.norm.weight", &[6])?;
        let b = parameter(g, "m.norm.bias", &[6])?;
        g.node(Op::LayerNorm { eps: 1e-5 }, &[x, w, b], "m.norm")
    });
    all.one("softmax", &[2, 3, 6], |g, x| g.node(Op::Softmax, &[x], "m.softmax"));
}

fn layouts(all: &mut Samples) {
    let reshape = |shape: Vec<Dim>| Op::Reshape { shape };
    all.one("reshape", &[3, 4], |g, x| g.node(reshape(batched(&[2, 6])), &[x], "m"));
    all.one("reshape that merges the batch", &[3, 4], |g, x| {
        let flat = g.node(reshape(vec![Dim::Batch(3), Dim::Fixed(4)]), &[x], "m")?;
        let two = g.number(2.0);
        let flat = g.node(Op::Binary(Binary::Mul), &[flat, two], "m")?;
        g.node(reshape(batched(&[12])), &[flat], "m")
    });
    all.one("a new axis in front of the batch", &[4], |g, x| {
        let x = g.node(reshape(vec![Dim::ONE, Dim::BATCH, Dim::Fixed(4)]), &[x], "m")?;
        g.node(Op::Permute { axes: vec![1, 0, 2] }, &[x], "m")
    });
    all.one("permute", &[2, 3, 4], |g, x| g.node(Op::Permute { axes: vec![0, 2, 3, 1] }, &[x], "m"));
    all.one("permute the batch", &[3], |g, x| {
        let t = g.node(Op::Permute { axes: vec![1, 0] }, &[x], "m")?;
        let s = g.node(Op::MatMul, &[x, t], "m")?;
        g.node(Op::MatMul, &[s, x], "m")
    });
    all.one("expand a known row over the batch", &[2, 3], |g, x| {
        let row = parameter(g, "m.latents", &[2, 3])?;
        let all = g.node(Op::Expand { shape: batched(&[2, 3]) }, &[row], "m")?;
        g.node(Op::Concat { axis: 1 }, &[all, x], "m")
    });
    all.one("expand a number over the batch", &[2], |g, x| {
        let n = g.number(0.25);
        let ones = g.node(Op::Expand { shape: batched(&[1]) }, &[n], "m")?;
        g.node(Op::Concat { axis: 1 }, &[x, ones], "m")
    });
    all.one("expand an axis", &[1, 3], |g, x| g.node(Op::Expand { shape: batched(&[4, 3]) }, &[x], "m"));
    all.one("slice", &[5, 3], |g, x| g.node(Op::Slice { axis: 1, start: 1, len: 3 }, &[x], "m"));
    all.one("slice the last axis", &[5, 3], |g, x| g.node(Op::Slice { axis: 2, start: 2, len: 1 }, &[x], "m"));
    all.two("concat three", &[2, 3], &[4, 3], |g, a, b| g.node(Op::Concat { axis: 1 }, &[a, b, a], "m"));
}

fn gathers(all: &mut Samples) {
    all.one("gather truth values", &[5], |g, x| {
        let large = above(g, x, 1.0)?;
        let at = g.integers(&[3], &[4, 0, 2])?;
        let some = g.node(Op::Gather { axis: 1 }, &[large, at], "m")?;
        let not = g.node(Op::Not, &[some], "m")?;
        float(g, not)
    });
    all.one("gather known columns", &[5], |g, x| {
        let at = g.integers(&[3], &[4, 0, 2])?;
        g.node(Op::Gather { axis: 1 }, &[x, at], "m")
    });
    all.one("gather backwards", &[4, 2], |g, x| {
        let at = g.integers(&[4], &[3, 2, 1, 0])?;
        g.node(Op::Gather { axis: 1 }, &[x, at], "m")
    });
    all.one("rows of a table by the inputs", &[3], |g, x| {
        let table = parameter(g, "m.embedding.weight", &[4, 5])?;
        let by = g.number(1.9);
        let x = g.node(Op::Binary(Binary::Mul), &[x, by], "m")?;
        let at = g.node(Op::Cast { to: DType::I64 }, &[x], "m")?;
        g.node(Op::Gather { axis: 0 }, &[table, at], "m.embedding")
    });
}

/// Builds a small model: missing numbers, tokens, attention, a norm, a gate; two outputs.
fn model() -> Built {
    let mut g = Graph::new();
    let g = &mut g;
    let x = g.input("x", DType::F32, batched(&[6]));
    let size = g.node(Op::Unary(Unary::Abs), &[x], "scaler")?;
    let most = g.number(f32::MAX);
    let zero = g.number(0.0);
    let finite = g.node(Op::Compare(Compare::LessEqual), &[size, most], "scaler")?;
    let filled = g.node(Op::Where, &[finite, x, zero], "scaler")?;
    let w = parameter(g, "tokens.weight", &[24, 6])?;
    let b = parameter(g, "tokens.bias", &[24])?;
    let tokens = g.node(Op::Linear, &[filled, w, b], "tokens")?;
    let tokens = g.node(Op::Reshape { shape: batched(&[3, 8]) }, &[tokens], "tokens")?;
    let heads = |g: &mut Graph, name: &str| {
        let w = parameter(g, name, &[8, 8])?;
        let t = g.node(Op::Linear, &[tokens, w], "attention")?;
        let t = g.node(Op::Reshape { shape: batched(&[3, 2, 4]) }, &[t], "attention")?;
        g.node(Op::Permute { axes: vec![0, 2, 1, 3] }, &[t], "attention")
    };
    let q = heads(g, "q.weight")?;
    let k = heads(g, "k.weight")?;
    let v = heads(g, "v.weight")?;
    let k = g.node(Op::Permute { axes: vec![0, 1, 3, 2] }, &[k], "attention")?;
    let scores = g.node(Op::MatMul, &[q, k], "attention")?;
    let half = g.number(0.5);
    let scores = g.node(Op::Binary(Binary::Mul), &[scores, half], "attention")?;
    let shares = g.node(Op::Softmax, &[scores], "attention")?;
    let seen = g.node(Op::MatMul, &[shares, v], "attention")?;
    let seen = g.node(Op::Permute { axes: vec![0, 2, 1, 3] }, &[seen], "attention")?;
    let seen = g.node(Op::Reshape { shape: batched(&[3, 8]) }, &[seen], "attention")?;
    let sum = g.node(Op::Binary(Binary::Add), &[tokens, seen], "residual")?;
    let w = parameter(g, "norm.weight", &[8])?;
    let b = parameter(g, "norm.bias", &[8])?;
    let normed = g.node(Op::LayerNorm { eps: 1e-5 }, &[sum, w, b], "norm")?;
    let pooled = g.node(Op::Reduce { fold: Fold::Mean, axes: vec![1], keep: false }, &[normed], "pool")?;
    let w = parameter(g, "head.in.weight", &[4, 8])?;
    let b = parameter(g, "head.bias", &[4])?;
    let answer = g.node(Op::Linear, &[pooled, w, b], "head")?;
    let w = parameter(g, "gate.weight", &[1, 8])?;
    let gate = g.node(Op::Linear, &[pooled, w], "gate")?;
    let gate = g.node(Op::Unary(Unary::Sigmoid), &[gate], "gate")?;
    let answer = g.node(Op::Binary(Binary::Mul), &[answer, gate], "gate")?;
    let answer = g.node(Op::Reshape { shape: batched(&[2, 2]) }, &[answer], "answer")?;
    g.output(answer, "y");
    g.output(gate, "gate");
    Ok(g.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_samples_hold_every_operation_and_answer_finite_numbers() {
        let all = samples();
        let names: BTreeSet<&str> = all.iter().flat_map(|s| s.graph.nodes()).map(|node| node.op.name()).collect();
        // Every arm of `Op::name`.
        assert_eq!(names.len(), 36, "{names:?}");
        for sample in &all {
            for batch in [1, 2, 7] {
                let (_, outputs) = sample.case(batch);
                assert!(outputs.iter().all(|o| o.values.iter().all(|v| v.is_finite())), "{}", sample.name);
            }
        }
        let unique: BTreeSet<&str> = all.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(unique.len(), all.len());
    }
}
