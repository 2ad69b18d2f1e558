//! Emission of every graph operation in ONNX operators.

use super::draft::{NodeAttribute, OnnxDraft};
use crate::{
    ExportError, model,
    spelling::{binary, compare, reduction, unary},
};
use enn_common::graph::{Dim, Fold, Node, Op, Unary};
use std::f32::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, SQRT_2};

/// Writes a node of the graph as one or several of ONNX.
pub(super) fn emit(draft: &mut OnnxDraft<'_>, node: &Node) -> Result<(), ExportError> {
    if node.op == Op::Linear {
        if draft.cut(node.out).is_none() {
            linear(draft, node);
        }
        return Ok(());
    }
    if let Op::Slice { start, len, .. } = node.op
        && let Some(product) = draft.cut(node.ins[0])
    {
        part(draft, product, start, len);
        return Ok(());
    }
    let ins: Vec<String> = node.ins.iter().map(|id| draft.operand(*id)).collect();
    let ins: Vec<&str> = ins.iter().map(String::as_str).collect();
    match &node.op {
        Op::Unary(Unary::GeluTanh) => gelu_tanh(draft, node, ins[0]),
        Op::Unary(Unary::Gelu) => gelu(draft, node, ins[0]),
        Op::Unary(f) => draft.last(unary(*f).onnx, &ins, &[]),
        Op::Binary(f) => draft.last(binary(*f).onnx, &ins, &[]),
        Op::Compare(f) => draft.last(compare(*f).onnx, &ins, &[]),
        Op::And => draft.last("And", &ins, &[]),
        Op::Not => draft.last("Not", &ins, &[]),
        Op::Where => draft.last("Where", &ins, &[]),
        Op::MatMul => draft.last("MatMul", &ins, &[]),
        Op::Cast { to } => draft.last("Cast", &ins, &[NodeAttribute::Type("to", *to)]),
        Op::LayerNorm { eps } => {
            draft.last("LayerNormalization", &ins, &[axis(-1), NodeAttribute::Float("epsilon", *eps as f32)]);
        }
        Op::Softmax => draft.last("Softmax", &ins, &[axis(-1)]),
        Op::Reduce { fold, axes, keep } => reduce(draft, ins[0], *fold, axes, *keep),
        Op::Reshape { shape } => return reshape(draft, node, ins[0], shape),
        Op::Permute { axes } => draft.last("Transpose", &ins, &[NodeAttribute::Ints("perm", signed(axes))]),
        Op::Expand { shape } => return expand(draft, node, ins[0], shape),
        Op::Slice { axis, start, len } => {
            let ends = [*start, start + len, *axis as u64].map(|at| draft.integers(&[at.cast_signed()]));
            let [start, end, axis] = &ends;
            draft.last("Slice", &[ins[0], start, end, axis], &[]);
        }
        Op::Concat { axis: at } => draft.last("Concat", &ins, &[axis(*at as i64)]),
        Op::Gather { axis: at } => draft.last("Gather", &ins, &[axis(*at as i64)]),
        Op::Linear => unreachable!("written above"),
    }
    Ok(())
}

fn axis(at: i64) -> NodeAttribute {
    NodeAttribute::Int("axis", at)
}

fn signed(values: &[usize]) -> Vec<i64> {
    values.iter().map(|value| *value as i64).collect()
}

fn unsupported(node: &Node, why: &str, hint: &str) -> ExportError {
    let place = if node.place.is_empty() { "the graph" } else { &node.place };
    ExportError::unsupported("onnx", node.op.name(), place, why, hint)
}

/// Writes a linear layer: with two axes as `Gemm`, which takes the weight either way round; otherwise as a product with the transposed
/// weight, and a sum.
fn linear(draft: &mut OnnxDraft<'_>, node: &Node) {
    let x = draft.operand(node.ins[0]);
    let weight = node.ins[1];
    let is_matrix = draft.graph.value(node.ins[0]).shape.len() == 2;
    let as_it_is = is_matrix && !draft.only_transposed.contains(&weight);
    let weight = if as_it_is { draft.operand(weight) } else { draft.transposed_operand(weight) };
    let bias = node.ins.get(2).map(|bias| draft.operand(*bias));
    product(draft, &x, &weight, bias.as_deref(), is_matrix.then_some(as_it_is));
}

/// Writes some columns of a [`linear`] layer: a product with these rows of its weight.
fn part(draft: &mut OnnxDraft<'_>, node: &Node, start: u64, len: u64) {
    let x = draft.operand(node.ins[0]);
    let is_matrix = draft.graph.value(node.ins[0]).shape.len() == 2;
    let weight = draft.rows_of(node.ins[1], start, len, !is_matrix);
    let bias = node.ins.get(2).map(|bias| draft.rows_of(*bias, start, len, false));
    product(draft, &x, &weight, bias.as_deref(), is_matrix.then_some(true));
}

/// Writes a product and a sum; as `Gemm` where `transposed` is given, which says whether the weight lies transposed.
fn product(draft: &mut OnnxDraft<'_>, x: &str, weight: &str, bias: Option<&str>, transposed: Option<bool>) {
    if let Some(transposed) = transposed {
        let ins: Vec<&str> = [x, weight].into_iter().chain(bias).collect();
        draft.last("Gemm", &ins, &[NodeAttribute::Int("transB", transposed.into())]);
    } else if let Some(bias) = bias {
        let product = draft.part("MatMul", &[x, weight]);
        draft.last("Add", &[&product, bias], &[]);
    } else {
        draft.last("MatMul", &[x, weight], &[]);
    }
}

/// Writes GELU in the order of operations that onnxruntime and TensorRT fuse.
fn gelu(draft: &mut OnnxDraft<'_>, node: &Node, x: &str) {
    let dtype = draft.graph.value(node.out).dtype;
    let [root, one, half] = [SQRT_2, 1.0, 0.5].map(|value| draft.number(dtype, value));
    let scaled = draft.part("Div", &[x, &root]);
    let erf = draft.part("Erf", &[&scaled]);
    let share = draft.part("Add", &[&erf, &one]);
    let part = draft.part("Mul", &[x, &share]);
    draft.last("Mul", &[&part, &half], &[]);
}

/// Writes x/2·(1 + tanh(√(2/π)·x·(1 + 0.044715·x²))), in the order of operations that onnxruntime fuses.
fn gelu_tanh(draft: &mut OnnxDraft<'_>, node: &Node, x: &str) {
    let dtype = draft.graph.value(node.out).dtype;
    let numbers = [0.044_715, FRAC_2_SQRT_PI * FRAC_1_SQRT_2, 1.0, 0.5];
    let [cubic, root, one, half] = numbers.map(|value| draft.number(dtype, value));
    let bent = draft.part("Mul", &[&cubic, x]);
    let bent = draft.part("Mul", &[&bent, x]);
    let bent = draft.part("Add", &[&bent, &one]);
    let scaled = draft.part("Mul", &[x, &root]);
    let inner = draft.part("Mul", &[&scaled, &bent]);
    let tanh = draft.part("Tanh", &[&inner]);
    let share = draft.part("Add", &[&tanh, &one]);
    let part = draft.part("Mul", &[x, &half]);
    draft.last("Mul", &[&part, &share], &[]);
}

fn reduce(draft: &mut OnnxDraft<'_>, x: &str, fold: Fold, axes: &[usize], keep: bool) {
    if axes.is_empty() {
        // An empty list of axes would mean all of them.
        draft.last("Identity", &[x], &[]);
        return;
    }
    let axes = draft.integers(&signed(axes));
    draft.last(reduction(fold).onnx, &[x, &axes], &[NodeAttribute::Int("keepdims", keep.into())]);
}

fn reshape(draft: &mut OnnxDraft<'_>, node: &Node, x: &str, to: &[Dim]) -> Result<(), ExportError> {
    let sizes: Vec<i64> = to.iter().map(|dim| model::signed(*dim)).collect();
    let empty = sizes.contains(&0);
    if empty && sizes.contains(&-1) {
        return Err(unsupported(node, "the result has no elements", "leave out what is empty"));
    }
    let sizes = draft.integers(&sizes);
    // Without `allowzero` a size of 0 keeps the old size.
    let attributes: &[NodeAttribute] = if empty { &[NodeAttribute::Int("allowzero", 1)] } else { &[] };
    draft.last("Reshape", &[x, &sizes], attributes);
    Ok(())
}

fn expand(draft: &mut OnnxDraft<'_>, node: &Node, x: &str, to: &[Dim]) -> Result<(), ExportError> {
    let from = &draft.graph.value(node.ins[0]).shape;
    let new = to.len() - from.len();
    // An axis that already follows the batch stays unchanged beside a 1.
    let follows = |(axis, dim): (usize, &Dim)| match dim {
        Dim::Batch(_) if axis >= new && from[axis - new] == *dim => Dim::ONE,
        dim => *dim,
    };
    let to: Vec<Dim> = to.iter().enumerate().map(follows).collect();
    let mut parts = Vec::new();
    for run in to.chunk_by(|a, b| !a.is_open() && !b.is_open()) {
        parts.push(match run {
            [Dim::Batch(times)] => draft
                .rows(*times)
                .ok_or_else(|| unsupported(node, "no input has the batch", "give the graph an input with rows"))?,
            fixed => {
                let sizes: Vec<i64> = fixed.iter().filter_map(|dim| dim.fixed()).map(u64::cast_signed).collect();
                draft.integers(&sizes)
            }
        });
    }
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let sizes = match parts.as_slice() {
        [] => draft.integers(&[]),
        [one] => (*one).to_owned(),
        several => draft.joined(several),
    };
    draft.last("Expand", &[x, &sizes], &[]);
    Ok(())
}
