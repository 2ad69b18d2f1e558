//! Evaluation of a graph in half precision by its interpreter, which needs no runtime: whether its numbers stay in range, and how
//! far they lie from the model's own answers.

use crate::{
    ExportError, Runner, Tensor,
    error::Lost,
    precision::Precision,
    verify::{self, Cases, Deviation},
};
use enn_common::graph::{
    DType, Graph, Node, Op,
    eval::{self, Array},
    numel,
};
use half::f16;
use std::path::Path;

/// Limit on the multiplications for checking one graph: seconds.
const PRODUCTS_MAX: u64 = 1 << 30;
/// Limits on the rows of a check, which include the ones with invalid inputs.
const ROWS: std::ops::RangeInclusive<usize> = 12..=64;

struct Reference<'a> {
    graph: &'a Graph,
    lost: Option<Lost>,
}

impl Runner for Reference<'_> {
    fn version(&self) -> String {
        "enn's interpreter of graphs".to_owned()
    }

    fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, ExportError> {
        let given = |id| {
            let name = &self.graph.value(id).name;
            let tensor = inputs.iter().find(|input| input.name == *name);
            let why = "no rows of this input were given";
            let tensor = tensor.ok_or_else(|| ExportError::refused("the check", Path::new(name), why))?;
            Ok::<_, ExportError>(Array::new(&tensor.shape, tensor.values.iter().map(|v| f64::from(*v)).collect()))
        };
        let arrays = self.graph.inputs().iter().map(|id| given(*id)).collect::<Result<Vec<_>, _>>()?;
        let batch = inputs.first().map_or(0, |input| input.shape[0]);
        let graph = self.graph;
        let lost = &mut self.lost;
        let mut seen = |node: &Node, array: &Array| {
            if lost.is_none() && graph.value(node.out).dtype == DType::F16 {
                *lost = beyond(node, array);
            }
        };
        let outputs = eval::watched(graph, &arrays, batch, &mut seen);
        let named = graph.outputs().iter().zip(outputs);
        let tensors = named.map(|(id, array)| Tensor {
            name: graph.value(*id).name.clone(),
            shape: array.shape,
            values: array.values.iter().map(|v| *v as f32).collect(),
        });
        Ok(tensors.collect())
    }
}

/// Returns the first number that f16 cannot hold.
fn beyond(node: &Node, array: &Array) -> Option<Lost> {
    let number = array.values.iter().find(|v| v.is_finite() && f16::from_f64(**v).is_infinite())?;
    let place = if node.place.is_empty() { "the model" } else { &node.place };
    let found = format!("a {} gives {number:.3e}, the largest number is 65504", node.op.name());
    Some(Lost { precision: Precision::Fp16, place: place.to_owned(), found })
}

/// Compares the answers of `graph` with the last of the cases.
///
/// # Errors
/// Half precision cannot hold a number.
pub fn check(graph: &Graph, cases: &Cases, tolerance: f64) -> Result<Deviation, ExportError> {
    let some = cases.some(rows(graph, cases.rows()));
    let mut reference = Reference { graph, lost: None };
    let artifact = Path::new("the graph in half precision");
    let found = verify::verify(&mut reference, &some, &[some.rows()], artifact, tolerance)?;
    reference.lost.map_or(Ok(found), |lost| Err(lost.into()))
}

/// Returns as many rows as the limit on multiplications allows.
fn rows(graph: &Graph, all: usize) -> usize {
    let width = |node: &Node| {
        let shape = &graph.value(node.ins[0]).shape;
        shape.last().map_or(1, |dim| dim.of(1))
    };
    let products = graph.nodes().iter().filter(|node| matches!(node.op, Op::Linear | Op::MatMul));
    let row: u64 = products.map(|node| numel(&graph.value(node.out).shape) * width(node)).sum();
    let affordable = (PRODUCTS_MAX / row.max(1)) as usize;
    affordable.clamp(*ROWS.start(), *ROWS.end()).min(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use enn_common::graph::{Binary, Dim};

    #[test]
    fn the_first_number_beyond_the_range_is_told_with_its_place() {
        let mut g = Graph::new();
        let x = g.input("x", DType::F32, vec![Dim::BATCH, Dim::Fixed(1)]);
        let half = g.node(Op::Cast { to: DType::F16 }, &[x], "a").unwrap();
        let square = g.node(Op::Binary(Binary::Mul), &[half, half], "fuser.gate").unwrap();
        let y = g.node(Op::Cast { to: DType::F32 }, &[square], "b").unwrap();
        g.output(y, "y");
        let cases = |most: f32| {
            let tensor = |name: &str, f: fn(f32) -> f32| {
                let values = (0..20).map(|row| f(most * row as f32 / 19.0)).collect();
                Tensor { name: name.to_owned(), shape: vec![20, 1], values }
            };
            let given = vec![tensor("x", |v| v)];
            let answered = vec![tensor("y", |v| v * v)];
            Cases { given, answered, centre: vec![0.0], spread: vec![1.0], from: "drawn".to_owned() }
        };
        let found = check(&g, &cases(200.0), 1e-2).unwrap();
        assert!(found.largest > 0.0 && found.largest < 2e-3 && found.wrong.is_none(), "{found:?}");
        let error = check(&g, &cases(300.0), 1e-2).unwrap_err().to_string();
        assert!(error.starts_with("fuser.gate in fp16: a mul gives 7.209e4, the largest number is 65504"), "{error}");
    }
}
