//! Passes over a graph before it is written: known values are computed, common subexpressions are computed once, and
//! nodes without effect or readers are removed.
//!
//! **Invariant:** the function is preserved; a second pass changes nothing.

mod axes;
mod fold;
mod precision;

pub use axes::within;
use enn_common::graph::{DType, Data, Dim, Graph, GraphValue, Id, Known, Node, Op, infer::GraphError};
use fold::Folded;
pub use precision::reduced;
use std::collections::{HashMap, HashSet};

/// Applies all passes.
///
/// # Errors
/// Never, for a graph that was checked where it was built.
pub fn prepared(graph: &Graph) -> Result<Graph, GraphError> {
    let folded = Folded::of(graph);
    let live = read(&folded);
    let mut out = Copy::of(graph);
    for node in folded.nodes().filter(|node| live.contains(&node.out)) {
        if moves_nothing(&folded, node) {
            let same = out.place(&folded, node.ins[0])?;
            out.places.insert(node.out, same);
            continue;
        }
        let ins = node.ins.iter().map(|id| out.place(&folded, *id)).collect::<Result<Vec<_>, _>>()?;
        let made = out.node(&node.op, &ins, &node.place)?;
        out.places.insert(node.out, made);
    }
    out.finished(&folded)
}

/// Returns the values that an output depends on.
fn read(folded: &Folded<'_>) -> HashSet<Id> {
    let mut live: HashSet<Id> = folded.graph.outputs().iter().copied().collect();
    for node in folded.nodes().rev() {
        if live.contains(&node.out) {
            live.extend(&node.ins);
        }
    }
    live
}

/// Returns whether a node returns its operand unchanged. An output has a name of its own, and so needs a node.
fn moves_nothing(folded: &Folded<'_>, node: &Node) -> bool {
    let is_all =
        |index: &GraphValue| index.data.is_some() && index.integers().into_iter().eq(0..index.integers().len() as i64);
    let stays = match &node.op {
        Op::Reshape { .. } | Op::Expand { .. } | Op::Slice { .. } => true,
        Op::Permute { axes } => axes.is_sorted(),
        Op::Gather { .. } => is_all(folded.value(node.ins[1])),
        _ => false,
    };
    let is_output = folded.graph.outputs().contains(&node.out);
    stays && folded.value(node.out).shape == folded.value(node.ins[0]).shape && !is_output
}

/// A graph that is made of another's parts: inputs first, known tensors at their first reader.
struct Copy {
    graph: Graph,
    places: HashMap<Id, Id>,
    /// Known tensors by content.
    tensors: HashMap<(DType, Vec<Dim>, blake3::Hash), Id>,
    /// Nodes by computation.
    nodes: HashMap<(String, Vec<Id>), Id>,
    constants: usize,
}

impl Copy {
    fn of(other: &Graph) -> Self {
        let mut graph = Graph::new();
        let input = |id: &Id| {
            let value = other.value(*id);
            (*id, graph.input(&value.name, value.dtype, value.shape.clone()))
        };
        let places = other.inputs().iter().map(input).collect();
        Self { graph, places, tensors: HashMap::new(), nodes: HashMap::new(), constants: 0 }
    }

    /// Returns the id in this graph of a value of the other one.
    fn place(&mut self, other: &Folded<'_>, id: Id) -> Result<Id, GraphError> {
        if let Some(place) = self.places.get(&id) {
            return Ok(*place);
        }
        let place = self.tensor(other.value(id))?;
        self.places.insert(id, place);
        Ok(place)
    }

    /// Adds a known tensor; constants with the same content are merged.
    fn tensor(&mut self, value: &GraphValue) -> Result<Id, GraphError> {
        let data: &Data = value.data.as_ref().expect("what no node gives is known");
        let shape: Vec<u64> = value.shape.iter().map(|dim| dim.of(1)).collect();
        if data.known != Known::Constant {
            return self.graph.known(&value.name, value.dtype, &shape, data.known, data.bytes.clone());
        }
        let key = (value.dtype, value.shape.clone(), blake3::hash(&data.bytes));
        if let Some(known) = self.tensors.get(&key) {
            return Ok(*known);
        }
        self.constants += 1;
        let name = format!("constant_{}", self.constants);
        let id = self.graph.known(&name, value.dtype, &shape, Known::Constant, data.bytes.clone())?;
        self.tensors.insert(key, id);
        Ok(id)
    }

    fn node(&mut self, op: &Op, ins: &[Id], place: &str) -> Result<Id, GraphError> {
        let key = (format!("{op:?}"), ins.to_vec());
        if let Some(made) = self.nodes.get(&key) {
            return Ok(*made);
        }
        let made = self.graph.node(op.clone(), ins, place)?;
        self.nodes.insert(key, made);
        Ok(made)
    }

    fn finished(mut self, other: &Folded<'_>) -> Result<Graph, GraphError> {
        for id in other.graph.outputs() {
            let place = self.place(other, *id)?;
            self.graph.output(place, &other.value(*id).name);
        }
        Ok(self.graph)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::samples;
    use enn_common::graph::{Binary, Unary, eval};

    #[test]
    fn every_sample_stays_the_same_function_and_a_second_pass_changes_nothing() {
        for sample in samples() {
            let once = prepared(&sample.graph).unwrap();
            assert_eq!(prepared(&once).unwrap(), once, "{}", sample.name);
            let (inputs, outputs) = sample.case(3);
            for (a, b) in eval::run(&once, &inputs, 3).iter().zip(&outputs) {
                let off = a.values.iter().zip(&b.values).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                assert!(off < 1e-6, "{}: {off}", sample.name);
            }
        }
    }

    #[test]
    fn what_is_known_is_computed_and_what_nobody_reads_goes() {
        let mut g = Graph::new();
        let x = g.input("x", DType::F32, vec![Dim::BATCH, Dim::Fixed(2)]);
        let a = g.floats(&[2], &[1.0, 2.0]).unwrap();
        let b = g.floats(&[2], &[1.0, 2.0]).unwrap();
        let sum = g.node(Op::Binary(Binary::Add), &[a, b], "k").unwrap();
        let one = g.node(Op::Binary(Binary::Mul), &[x, sum], "m").unwrap();
        let two = g.node(Op::Binary(Binary::Mul), &[x, sum], "m").unwrap();
        let _unread = g.node(Op::Unary(Unary::Exp), &[x], "m").unwrap();
        let y = g.node(Op::Binary(Binary::Add), &[one, two], "m").unwrap();
        g.output(y, "y");
        let made = prepared(&g).unwrap();
        let names: Vec<&str> = made.nodes().iter().map(|node| node.op.name()).collect();
        assert_eq!(names, ["mul", "add"]);
        let known: Vec<Vec<f32>> = made.values().filter(|(_, v)| v.data.is_some()).map(|(_, v)| v.floats()).collect();
        assert_eq!(known, [[2.0, 4.0]]);
    }

    #[test]
    fn what_changes_nothing_goes_unless_it_is_answered() {
        let mut g = Graph::new();
        let shape = vec![Dim::BATCH, Dim::Fixed(3)];
        let x = g.input("x", DType::F32, shape.clone());
        let [all, other] = [[0, 1, 2], [0, 2, 1]].map(|index| g.integers(&[3], &index).unwrap());
        let mut y = g.node(Op::Gather { axis: 1 }, &[x, all], "m").unwrap();
        for op in [
            Op::Reshape { shape: shape.clone() },
            Op::Permute { axes: vec![0, 1] },
            Op::Slice { axis: 1, start: 0, len: 3 },
            Op::Expand { shape: shape.clone() },
        ] {
            y = g.node(op, &[y], "m").unwrap();
        }
        let turned = g.node(Op::Gather { axis: 1 }, &[y, other], "m").unwrap();
        let answer = g.node(Op::Reshape { shape }, &[turned], "m").unwrap();
        g.output(answer, "y");
        let made = prepared(&g).unwrap();
        let names: Vec<&str> = made.nodes().iter().map(|node| node.op.name()).collect();
        assert_eq!(names, ["gather", "reshape"]);
        assert_eq!(made.nodes()[0].ins[0], made.inputs()[0]);
    }

    #[test]
    fn a_table_that_repeating_makes_large_stays_a_repetition() {
        let mut g = Graph::new();
        let x = g.input("x", DType::F32, vec![Dim::BATCH, Dim::Fixed(1)]);
        let one = g.number(1.0);
        let wide = g.node(Op::Expand { shape: vec![Dim::Fixed(1 << 20)] }, &[one], "k").unwrap();
        let y = g.node(Op::Binary(Binary::Add), &[x, wide], "m").unwrap();
        g.output(y, "y");
        assert_eq!(prepared(&g).unwrap().nodes().len(), 2);
    }
}
