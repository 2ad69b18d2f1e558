//! Rewriting of operations on many axes for formats whose runtimes take few: axes that belong together are joined, and
//! an operation that still has too many is done in steps.
//!
//! **Invariant:** the function is preserved, bit by bit where nothing is summed; a graph without many axes is unchanged.

mod moves;

use crate::model::{joined, joined_rows};
use enn_common::graph::{Data, Dim, Graph, GraphValue, Id, Node, Op, infer::GraphError};
use std::collections::HashMap;

/// Returns the graph with no operation on more than `axes_max` axes (at least 5), except reshapes of ports. A value with the batch in
/// two axes is unchanged.
///
/// # Errors
/// Never, for a graph that was checked where it was built.
pub fn within(graph: &Graph, axes_max: usize) -> Result<Graph, GraphError> {
    if graph.values().all(|(_, value)| value.shape.len() <= axes_max) {
        return Ok(graph.clone());
    }
    let mut fewer = Fewer { from: graph, to: Graph::new(), axes_max, forms: HashMap::new(), roots: HashMap::new() };
    for id in graph.inputs() {
        let value = graph.value(*id);
        let form = fewer.to.input(&value.name, value.dtype, value.shape.clone());
        fewer.forms.insert(*id, form);
    }
    for node in graph.nodes() {
        let form = fewer.node(node)?;
        fewer.forms.insert(node.out, form);
    }
    for id in graph.outputs() {
        let value = graph.value(*id);
        let out = fewer.shaped(*id, &value.shape, "output")?;
        fewer.to.output(out, &value.name);
    }
    super::prepared(&fewer.to)
}

/// A graph that is being rewritten with fewer axes.
struct Fewer<'a> {
    from: &'a Graph,
    to: Graph,
    axes_max: usize,
    /// Rewritten values: the same elements in the same order, in their own shape or with fewer axes.
    forms: HashMap<Id, Id>,
    /// Operand of each reshape in the new graph.
    roots: HashMap<Id, Id>,
}

/// Returns the sizes around an axis: those before it joined, its own, those after it joined.
fn about(shape: &[Dim], axis: usize) -> [Dim; 3] {
    [joined(&shape[..axis]), shape[axis], joined(&shape[axis + 1..])]
}

impl Fewer<'_> {
    fn value(&self, id: Id) -> &GraphValue {
        self.from.value(id)
    }

    /// Returns the rewritten form of a value of the old graph.
    fn form(&mut self, id: Id) -> Result<Id, GraphError> {
        if let Some(form) = self.forms.get(&id) {
            return Ok(*form);
        }
        let GraphValue { name, dtype, shape, data } = self.from.value(id);
        let Data { known, bytes } = data.as_ref().expect("what no node gives is known");
        let sizes: Vec<u64> = shape.iter().map(|dim| dim.of(1)).collect();
        let sizes = if sizes.len() > self.axes_max { vec![sizes.iter().product()] } else { sizes };
        let form = self.to.known(name, *dtype, &sizes, *known, bytes.clone())?;
        self.forms.insert(id, form);
        Ok(form)
    }

    /// Returns a value of the old graph in another shape of as many elements.
    fn shaped(&mut self, id: Id, shape: &[Dim], place: &str) -> Result<Id, GraphError> {
        let form = self.form(id)?;
        self.reshaped(form, shape, place)
    }

    /// Reshapes a value of the new graph, skipping any reshape that it came from.
    fn reshaped(&mut self, id: Id, shape: &[Dim], place: &str) -> Result<Id, GraphError> {
        if self.to.value(id).shape == shape {
            return Ok(id);
        }
        let root = self.roots.get(&id).copied().unwrap_or(id);
        if self.to.value(root).shape == shape {
            return Ok(root);
        }
        let made = self.to.node(Op::Reshape { shape: shape.to_vec() }, &[root], place)?;
        self.roots.insert(made, root);
        Ok(made)
    }

    /// Rewrites a node; returns its result.
    fn node(&mut self, node: &Node) -> Result<Id, GraphError> {
        let out = self.value(node.out).shape.clone();
        let shapes = || node.ins.iter().map(|id| &self.value(*id).shape).chain([&out]);
        let many = shapes().any(|shape| shape.len() > self.axes_max);
        let open_twice = shapes().any(|shape| shape.iter().filter(|dim| dim.is_open()).count() > 1);
        if !many || open_twice {
            let own = |fewer: &mut Self, id: &Id| {
                let shape = fewer.value(*id).shape.clone();
                fewer.shaped(*id, &shape, &node.place)
            };
            let ins = node.ins.iter().map(|id| own(self, id)).collect::<Result<Vec<_>, _>>()?;
            return self.to.node(node.op.clone(), &ins, &node.place);
        }
        let made = self.fewer(node, &out)?;
        // Readers of a value with few axes find it in its own shape.
        if out.len() <= self.axes_max { self.reshaped(made, &out, &node.place) } else { Ok(made) }
    }

    /// Rewrites a node with too many axes; the result may have any shape.
    fn fewer(&mut self, node: &Node, out: &[Dim]) -> Result<Id, GraphError> {
        let place = node.place.as_str();
        let first = node.ins[0];
        let from = self.value(first).shape.clone();
        match &node.op {
            Op::Unary(_) | Op::Not | Op::Cast { .. } => {
                let x = self.form(first)?;
                // A port has its own shape, whatever it is.
                let x = if self.to.value(x).shape.len() > self.axes_max {
                    self.reshaped(x, &joined_rows(&from), place)?
                } else {
                    x
                };
                self.to.node(node.op.clone(), &[x], place)
            }
            Op::Reshape { .. } => self.form(first),
            Op::Permute { axes } => self.permuted(node, &from, axes),
            Op::Softmax | Op::LayerNorm { .. } | Op::Linear => {
                let x = self.shaped(first, &joined_rows(&from), place)?;
                let rest = node.ins[1..].iter().map(|id| self.form(*id)).collect::<Result<Vec<_>, _>>()?;
                self.to.node(node.op.clone(), &[vec![x], rest].concat(), place)
            }
            Op::Slice { axis, start, len } => {
                let x = self.shaped(first, &about(&from, *axis), place)?;
                self.to.node(Op::Slice { axis: 1, start: *start, len: *len }, &[x], place)
            }
            Op::Concat { axis } => {
                let part = |fewer: &mut Self, id: &Id| {
                    let shape = about(&fewer.value(*id).shape, *axis);
                    fewer.shaped(*id, &shape, place)
                };
                let parts = node.ins.iter().map(|id| part(self, id)).collect::<Result<Vec<_>, _>>()?;
                self.to.node(Op::Concat { axis: 1 }, &parts, place)
            }
            Op::Gather { axis } => {
                let x = self.shaped(first, &about(&from, *axis), place)?;
                let count = joined(&self.value(node.ins[1]).shape);
                let index = self.shaped(node.ins[1], &[count], place)?;
                self.to.node(Op::Gather { axis: 1 }, &[x, index], place)
            }
            Op::Reduce { axes, .. } => self.folded(node, from, axes),
            Op::Expand { .. } => {
                let x = self.form(first)?;
                self.stretched(x, &from, out, place)
            }
            Op::MatMul => self.product(node, out),
            Op::Binary(_) | Op::Compare(_) | Op::And | Op::Where => self.together(node, out),
        }
    }

    /// Writes a permutation in as many steps as its blocks need.
    fn permuted(&mut self, node: &Node, from: &[Dim], axes: &[usize]) -> Result<Id, GraphError> {
        // Axes of one element may be anywhere.
        let kept: Vec<usize> = axes.iter().copied().filter(|axis| from[*axis] != Dim::ONE).collect();
        let sizes: Vec<Dim> = from.iter().copied().filter(|dim| *dim != Dim::ONE).collect();
        let rank = |axis: usize| from[..axis].iter().filter(|dim| **dim != Dim::ONE).count();
        let goal: Vec<usize> = kept.into_iter().map(rank).collect();
        let mut row: Vec<Dim> = sizes;
        let mut x = self.form(node.ins[0])?;
        for step in moves::steps(&goal, self.axes_max) {
            let mut rest = row.as_slice();
            let mut segments = Vec::with_capacity(step.lengths.len());
            for length in &step.lengths {
                let (segment, behind) = rest.split_at(*length);
                segments.push(joined(segment));
                rest = behind;
            }
            x = self.reshaped(x, &segments, &node.place)?;
            x = self.to.node(Op::Permute { axes: step.order.clone() }, &[x], &node.place)?;
            row = moves::moved(&row, &step);
        }
        Ok(x)
    }

    /// Reduces one run of neighbouring axes after the other, the last one first.
    fn folded(&mut self, node: &Node, mut shape: Vec<Dim>, axes: &[usize]) -> Result<Id, GraphError> {
        let Op::Reduce { fold, .. } = &node.op else { return self.form(node.ins[0]) };
        let mut x = self.form(node.ins[0])?;
        for run in axes.chunk_by(|a, b| a + 1 == *b).rev() {
            let start = run[0];
            let end = run[0] + run.len();
            let split = [joined(&shape[..start]), joined(&shape[start..end]), joined(&shape[end..])];
            x = self.reshaped(x, &split, &node.place)?;
            x = self.to.node(Op::Reduce { fold: *fold, axes: vec![1], keep: false }, &[x], &node.place)?;
            shape.drain(start..end);
        }
        Ok(x)
    }

    /// Broadcasts `x`, which stands for a value of the shape `from`, to the shape `to`; the result may have any shape.
    fn stretched(&mut self, x: Id, from: &[Dim], to: &[Dim], place: &str) -> Result<Id, GraphError> {
        let mut shape = [vec![Dim::ONE; to.len() - from.len()], from.to_vec()].concat();
        let mut x = x;
        let lacks: Vec<usize> = (0..to.len()).filter(|axis| shape[*axis] != to[*axis]).collect();
        for run in lacks.chunk_by(|a, b| a + 1 == *b) {
            let start = run[0];
            let end = run[0] + run.len();
            let before = joined(&shape[..start]);
            let behind = joined(&shape[end..]);
            x = self.reshaped(x, &[before, Dim::ONE, behind], place)?;
            let wide = vec![before, joined(&to[start..end]), behind];
            x = self.to.node(Op::Expand { shape: wide }, &[x], place)?;
            shape[start..end].copy_from_slice(&to[start..end]);
        }
        Ok(x)
    }

    /// Rewrites an operation with broadcasting: axes along which the same operands broadcast are joined; where that leaves too many, the
    /// operands are broadcast first.
    fn together(&mut self, node: &Node, out: &[Dim]) -> Result<Id, GraphError> {
        let place = node.place.as_str();
        let wide = |shape: &[Dim]| [vec![Dim::ONE; out.len() - shape.len()], shape.to_vec()].concat();
        let shapes: Vec<Vec<Dim>> = node.ins.iter().map(|id| wide(&self.value(*id).shape)).collect();
        let pattern = |axis: usize| shapes.iter().map(|shape| shape[axis] == out[axis]).collect::<Vec<bool>>();
        let axes: Vec<usize> = (0..out.len()).filter(|axis| out[*axis] != Dim::ONE).collect();
        let runs: Vec<&[usize]> = axes.chunk_by(|a, b| pattern(*a) == pattern(*b)).collect();
        let mut ins = Vec::with_capacity(node.ins.len());
        for (id, shape) in node.ins.iter().zip(&shapes) {
            ins.push(if runs.len() <= self.axes_max {
                let size = |run: &&[usize]| joined(&run.iter().map(|axis| shape[*axis]).collect::<Vec<_>>());
                self.shaped(*id, &runs.iter().map(size).collect::<Vec<_>>(), place)?
            } else {
                let x = self.form(*id)?;
                let whole = self.stretched(x, shape, out, place)?;
                self.reshaped(whole, &joined_rows(out), place)?
            });
        }
        self.to.node(node.op.clone(), &ins, place)
    }

    /// Rewrites a matrix product: leading axes are broadcast where necessary, and joined to one; an operand with only ones has none.
    fn product(&mut self, node: &Node, out: &[Dim]) -> Result<Id, GraphError> {
        let lead = &out[..out.len() - 2];
        let mut ins = Vec::with_capacity(2);
        for id in &node.ins {
            let shape = self.value(*id).shape.clone();
            let (own, square) = shape.split_at(shape.len() - 2);
            ins.push(if own.iter().all(|dim| *dim == Dim::ONE) {
                self.shaped(*id, square, &node.place)?
            } else {
                let x = self.form(*id)?;
                let whole = self.stretched(x, &shape, &[lead, square].concat(), &node.place)?;
                self.reshaped(whole, &[&[joined(lead)], square].concat(), &node.place)?
            });
        }
        self.to.node(Op::MatMul, &ins, &node.place)
    }
}

#[cfg(test)]
mod tests;
