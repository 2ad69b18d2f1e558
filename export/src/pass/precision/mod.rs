//! A graph in half precision: what bears it, and nothing else.
//!
//! ```text
//! weights       matrices and tables are stored in half; rows of numbers, as of a norm, are not. So are tables that nobody trained where
//!               half has each of their numbers, e.g. which category is which
//! products      in half where what goes in is bounded: it comes from a norm, a softmax, a sigmoid or a tanh, or from what does
//! between them  what moves, gates or activates a product's result stays in half
//! else          sums, means, norms, softmax, quotients, exp, log, √: f32. So is everything before the first norm, where a column may
//!               be a billion spreads away, and everything behind the last product, where answers get their units
//! ```
//! **Invariant:** ports keep their element types; no known number is rounded to zero or infinity.

mod plan;
#[cfg(test)]
mod tests;

use crate::{error::Lost, precision::Reduction};
use enn_common::graph::{DType, Data, Graph, Id, Known, Node, Op, Value, infer::GraphError};
use half::{bf16, f16};
use plan::Plan;
use std::collections::HashMap;

/// Elements of the smallest weight that is stored in half.
const STORED_MIN: u64 = 16;

/// Why there is no graph in half precision.
#[derive(Debug, thiserror::Error)]
pub enum ReduceError {
    /// A weight that it does not hold.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// Never, for a graph that was checked where it was built.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// The graph as `reduction` says.
///
/// # Errors
/// A weight that is too large, or too small throughout.
pub fn reduced(graph: &Graph, reduction: Reduction) -> Result<Graph, ReduceError> {
    let (precision, computed) = match reduction {
        Reduction::None => return Ok(graph.clone()),
        Reduction::Computed(precision) => (precision, true),
        Reduction::Stored(precision) => (precision, false),
    };
    for (_, value) in graph.values().filter(|(_, value)| is_weight(value)) {
        holds(value, precision.dtype()).map_err(|found| Lost { precision, place: value.name.clone(), found })?;
    }
    let plan = Plan::of(graph, precision.dtype(), computed);
    let mut out = Reduced { from: graph, to: Graph::new(), dtype: precision.dtype(), made: HashMap::new() };
    for id in graph.inputs() {
        let value = graph.value(*id);
        let made = out.to.input(&value.name, value.dtype, value.shape.clone());
        out.made.insert((*id, value.dtype), made);
    }
    for node in graph.nodes() {
        out.node(node, plan.is_half(node.out))?;
    }
    for id in graph.outputs() {
        let value = graph.value(*id);
        let made = out.operand(*id, value.dtype, "output")?;
        out.to.output(made, &value.name);
    }
    Ok(out.to)
}

/// Whether a known value is a matrix or a table that was trained.
fn is_weight(value: &Value) -> bool {
    is_table(value) && value.data.as_ref().is_some_and(|data| data.known == Known::Parameter)
}

fn is_table(value: &Value) -> bool {
    value.dtype == DType::F32
        && value.data.is_some()
        && value.shape.len() > 1
        && enn_common::graph::numel(&value.shape) >= STORED_MIN
}

/// Whether a known value is stored in half: a weight, or a table that loses nothing by it, as one of zeros and ones.
fn is_stored(value: &Value, dtype: DType) -> bool {
    is_weight(value) || (is_table(value) && value.floats().into_iter().all(|number| is_exact(number, dtype)))
}

/// Whether an element type of two bytes has a number.
fn is_exact(number: f32, dtype: DType) -> bool {
    let half = if dtype == DType::F16 { f16::from_f32(number).to_f32() } else { bf16::from_f32(number).to_f32() };
    half == number
}

/// Whether an element type of two bytes holds what a value is known to be: no number becomes infinite, and not all of them lose their
/// digits. What is found instead.
fn holds(value: &Value, dtype: DType) -> Result<(), String> {
    if dtype != DType::F16 {
        return Ok(());
    }
    let floats = value.floats();
    let most = floats.iter().copied().filter(|v| v.is_finite()).map(f32::abs).fold(0.0, f32::max);
    if f16::from_f32(most).is_infinite() {
        return Err(format!("it holds {most:.3e}, the largest number is 65504"));
    }
    if most > 0.0 && most < f16::MIN_POSITIVE.to_f32() {
        return Err(format!("it holds no number above {most:.3e}, below 6.1e-5 digits are lost"));
    }
    Ok(())
}

/// A graph on its way into one in half precision.
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

    /// A value of the old graph in an element type.
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
            Some(data) => self.to.known(&value.name, (dtype, &sizes(value)), data.known, data.bytes.clone())?,
            None => {
                let other = if dtype == self.dtype { DType::F32 } else { self.dtype };
                let other = self.made[&(id, other)];
                self.to.node(Op::Cast { to: dtype }, &[other], place)?
            }
        };
        self.made.insert((id, dtype), made);
        Ok(made)
    }

    /// A known value in half precision.
    fn halved(&mut self, value: &Value, data: &Data) -> Result<Id, GraphError> {
        let numbers = value.floats().into_iter();
        let bytes: Vec<u8> = if self.dtype == DType::F16 {
            numbers.flat_map(|number| f16::from_f32(number).to_le_bytes()).collect()
        } else {
            numbers.flat_map(|number| bf16::from_f32(number).to_le_bytes()).collect()
        };
        // What is not stored so may be there in both.
        let name = if is_stored(value, self.dtype) { value.name.clone() } else { format!("{}_half", value.name) };
        self.to.known(&name, (self.dtype, &sizes(value)), data.known, bytes)
    }
}

fn sizes(value: &Value) -> Vec<u64> {
    value.shape.iter().map(|dim| dim.of(1)).collect()
}
