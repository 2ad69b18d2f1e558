//! A graph in half precision, where the values tolerate it.
//!
//! ```text
//! weights       matrices and tables are stored in half; vectors, as of a norm, are not. So are untrained tables that half represents
//!                exactly, e.g. the index of a category
//! products      in half where the operand is bounded: it comes from a norm, a softmax, a sigmoid or a tanh, or from a bounded value
//! between them  operations that move, gate or activate a product's result stay in half
//! else          sums, means, norms, softmax, quotients, exp, log, √: f32. So is everything before the first norm, where a column may
//!                be a billion spreads away, and everything after the last product, where answers get their units
//! ```
//! **Invariant:** ports keep their element types; no known number is rounded to zero or infinity.

mod plan;
mod range;
#[cfg(test)]
mod tests;

use crate::{ExportError, error::Lost, model::halves, precision::Reduction};
use enn_common::graph::{DType, Data, Graph, GraphValue, Id, Known, Node, Op, infer::GraphError};
use plan::halved_values;
use range::{holds, is_exact};
use std::collections::HashMap;

/// Smallest number of elements of a weight that is stored in half.
const STORED_MIN: u64 = 16;

/// Returns the graph in reduced precision.
///
/// # Errors
/// A weight is too large, or too small throughout.
pub fn reduced(graph: &Graph, reduction: Reduction) -> Result<Graph, ExportError> {
    let (precision, computed) = match reduction {
        Reduction::None => return Ok(graph.clone()),
        Reduction::Computed(precision) => (precision, true),
        Reduction::Stored(precision) => (precision, false),
    };
    for (_, value) in graph.values().filter(|(_, value)| is_weight(value)) {
        holds(value, precision.dtype()).map_err(|found| Lost { precision, place: value.name.clone(), found })?;
    }
    let half = if computed { halved_values(graph, precision.dtype()) } else { vec![false; graph.values().count()] };
    let mut out = Reduced { from: graph, to: Graph::new(), dtype: precision.dtype(), made: HashMap::new() };
    for id in graph.inputs() {
        let value = graph.value(*id);
        let made = out.to.input(&value.name, value.dtype, value.shape.clone());
        out.made.insert((*id, value.dtype), made);
    }
    for node in graph.nodes() {
        out.node(node, half[node.out.0])?;
    }
    for id in graph.outputs() {
        let value = graph.value(*id);
        let made = out.operand(*id, value.dtype, "output")?;
        out.to.output(made, &value.name);
    }
    Ok(out.to)
}

/// Returns whether a known value is a trained matrix or table.
fn is_weight(value: &GraphValue) -> bool {
    is_table(value) && value.data.as_ref().is_some_and(|data| data.known == Known::Parameter)
}

fn is_table(value: &GraphValue) -> bool {
    value.dtype == DType::F32
        && value.data.is_some()
        && value.shape.len() > 1
        && enn_common::graph::numel(&value.shape) >= STORED_MIN
}

/// Returns whether a known value is stored in half: a weight, or a table that half represents exactly, as one of zeros and ones.
fn is_stored(value: &GraphValue, dtype: DType) -> bool {
    is_weight(value) || (is_table(value) && value.floats().into_iter().all(|number| is_exact(number, dtype)))
}

/// A graph that is being rewritten in half precision.
struct Reduced<'a> {
    from: &'a Graph,
    to: Graph,
    dtype: DType,
    /// Values of the old graph by element type.
    made: HashMap<(Id, DType), Id>,
}

impl Reduced<'_> {
    fn node(&mut self, node: &Node, half: bool) -> Result<(), GraphError> {
        let op = match &node.op {
            Op::Cast { to: DType::F32 } if half => Op::Cast { to: self.dtype },
            op => op.clone(),
        };
        let wanted = |dtype: DType| if dtype == DType::F32 && half { self.dtype } else { dtype };
        let kinds: Vec<DType> = node.ins.iter().map(|id| wanted(self.from.value(*id).dtype)).collect();
        let ins = node.ins.iter().zip(kinds).map(|(id, kind)| self.operand(*id, kind, &node.place));
        let ins = ins.collect::<Result<Vec<Id>, _>>()?;
        let made = self.to.node(op, &ins, &node.place)?;
        self.made.insert((node.out, self.to.value(made).dtype), made);
        Ok(())
    }

    /// Returns a value of the old graph in an element type.
    fn operand(&mut self, id: Id, dtype: DType, place: &str) -> Result<Id, GraphError> {
        if let Some(made) = self.made.get(&(id, dtype)) {
            return Ok(*made);
        }
        let value = self.from.value(id);
        let made = match &value.data {
            Some(data) if dtype == self.dtype => self.halved(value, data)?,
            Some(_) if is_stored(value, self.dtype) => {
                let half = self.operand(id, self.dtype, place)?;
                self.to.node(Op::Cast { to: dtype }, &[half], place)?
            }
            Some(data) => self.to.known(&value.name, dtype, &sizes(value), data.known, data.bytes.clone())?,
            None => {
                let other = if dtype == self.dtype { DType::F32 } else { self.dtype };
                let other = self.made[&(id, other)];
                self.to.node(Op::Cast { to: dtype }, &[other], place)?
            }
        };
        self.made.insert((id, dtype), made);
        Ok(made)
    }

    /// Adds a known value in half precision.
    fn halved(&mut self, value: &GraphValue, data: &Data) -> Result<Id, GraphError> {
        let bytes = halves(&value.floats(), self.dtype);
        // A value that is not stored in half may exist in both precisions.
        let name = if is_stored(value, self.dtype) { value.name.clone() } else { format!("{}_half", value.name) };
        self.to.known(&name, self.dtype, &sizes(value), data.known, bytes)
    }
}

fn sizes(value: &GraphValue) -> Vec<u64> {
    value.shape.iter().map(|dim| dim.of(1)).collect()
}
