//! Emission of every graph operation in ONNX operators.

use super::draft::{NodeAttribute, OnnxDraft};
use crate::ExportError;
use enn_common::graph::{Binary, Compare, Dim, Fold, Node, Op, Unary};
use std::f32::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, SQRT_2};

/// Returns the operator with the same operands in the same order and no attributes; `None` for other operations.
const fn plain(op: &Op) -> Option<&'static str> {
    Some(match op {
        Op::Unary(Unary::Neg) => "Neg",
        Op::Unary(Unary::Exp) => "Exp",
        Op::Unary(Unary::Log) => "Log",
        Op::Unary(Unary::Sqrt) => "Sqrt",
        Op::Unary(Unary::Abs) => "Abs",
        Op::Unary(Unary::Sigmoid) => "Sigmoid",
        Op::Unary(Unary::Tanh) => "Tanh",
        Op::Binary(Binary::Add) => "Add",
        Op::Binary(Binary::Sub) => "Sub",
        Op::Binary(Binary::Mul) => "Mul",
        Op::Binary(Binary::Div) => "Div",
        Op::Binary(Binary::Max) => "Max",
        Op::Binary(Binary::Min) => "Min",
        Op::Compare(Compare::Less) => "Less",
        Op::Compare(Compare::LessEqual) => "LessOrEqual",
        Op::Compare(Compare::Greater) => "Greater",
        Op::Compare(Compare::GreaterEqual) => "GreaterOrEqual",
        Op::And => "And",
        Op::Not => "Not",
        Op::Where => "Where",
        Op::MatMul => "MatMul",
        Op::Unary(Unary::Gelu | Unary::GeluTanh)
        | Op::Cast { .. }
        | Op::Linear
        | Op::LayerNorm { .. }
        | Op::Softmax
        | Op::Reduce { .. }
        | Op::Reshape { .. }
        | Op::Permute { .. }
        | Op::Expand { .. }
        | Op::Slice { .. }
        | Op::Concat { .. }
        | Op::Gather { .. } => return None,
    })
}

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
    if let Some(op) = plain(&node.op) {
        draft.last(op, &ins, &[]);
        return Ok(());
    }
    match &node.op {
        Op::Unary(Unary::GeluTanh) => gelu_tanh(draft, node, ins[0]),
        Op::Unary(Unary::Gelu) => gelu(draft, node, ins[0]),
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
        Op::Linear | Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::And | Op::Not | Op::Where | Op::MatMul => {
            unreachable!("written above: plain ones, and those of a matrix")
        }
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
    ExportError::Unsupported {
        target: "onnx",
        op: node.op.name().to_owned(),
        place: if node.place.is_empty() { "the graph".to_owned() } else { node.place.clone() },
        why: why.to_owned(),
        hint: hint.to_owned(),
    }
}

/// Writes a linear layer: with two axes as `Gemm`, which takes the weight either way round; otherwise as a product with the transposed
/// weight, and a sum.
fn linear(draft: &mut OnnxDraft<'_>, node: &Node) {
    let x = draft.operand(node.ins[0]);
    let weight = node.ins[1];
    let is_matrix = draft.graph.value(node.ins[0]).shape.len() == 2;
    let as_it_is = is_matrix && !draft.is_only_transposed(weight);
    let weight = if as_it_is { draft.operand(weight) } else { draft.transposed_operand(weight) };
    let bias = node.ins.get(2).map(|bias| draft.operand(*bias));
    match is_matrix {
        true => gemm(draft, &x, &weight, bias.as_deref(), as_it_is),
        false => product(draft, &x, &weight, bias.as_deref()),
    }
}

/// Writes some columns of a [`linear`] layer: a product with these rows of its weight.
fn part(draft: &mut OnnxDraft<'_>, node: &Node, start: u64, len: u64) {
    let x = draft.operand(node.ins[0]);
    let is_matrix = draft.graph.value(node.ins[0]).shape.len() == 2;
    let weight = draft.rows_of(node.ins[1], start, len, !is_matrix);
    let bias = node.ins.get(2).map(|bias| draft.rows_of(*bias, start, len, false));
    match is_matrix {
        true => gemm(draft, &x, &weight, bias.as_deref(), true),
        false => product(draft, &x, &weight, bias.as_deref()),
    }
}

fn gemm(draft: &mut OnnxDraft<'_>, x: &str, weight: &str, bias: Option<&str>, is_transposed: bool) {
    let ins: Vec<&str> = [x, weight].into_iter().chain(bias).collect();
    draft.last("Gemm", &ins, &[NodeAttribute::Int("transB", is_transposed.into())]);
}

fn product(draft: &mut OnnxDraft<'_>, x: &str, weight: &str, bias: Option<&str>) {
    match bias {
        None => draft.last("MatMul", &[x, weight], &[]),
        Some(bias) => {
            let product = draft.part("MatMul", &[x, weight]);
            draft.last("Add", &[&product, bias], &[]);
        }
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
    let op = match fold {
        Fold::Sum => "ReduceSum",
        Fold::Mean => "ReduceMean",
        Fold::Max => "ReduceMax",
    };
    let axes = draft.integers(&signed(axes));
    draft.last(op, &[x, &axes], &[NodeAttribute::Int("keepdims", keep.into())]);
}

fn reshape(draft: &mut OnnxDraft<'_>, node: &Node, x: &str, to: &[Dim]) -> Result<(), ExportError> {
    let sizes: Vec<i64> = to.iter().map(|dim| dim.fixed().map_or(-1, u64::cast_signed)).collect();
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
