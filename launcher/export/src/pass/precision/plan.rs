//! The choice of nodes that are computed in half precision. Pure.

use super::range::holds;
use enn_common::graph::{Binary, DType, Graph, Id, Node, Op, Unary};

/// Returns which values are computed in half precision.
pub(super) fn halved_values(graph: &Graph, dtype: DType) -> Vec<bool> {
    let mut half = vec![false; graph.values().count()];
    let bounded = bounded(graph);
    let inner = inner(graph);
    for node in graph.nodes() {
        half[node.out.0] = inner[node.out.0] && may_be_half(graph, node, &bounded, &half, dtype);
    }
    half
}

/// Returns which values are bounded whatever the inputs are: they come from operations with bounded results.
fn bounded(graph: &Graph) -> Vec<bool> {
    let mut bounded: Vec<bool> = graph.values().map(|(_, value)| value.data.is_some()).collect();
    for node in graph.nodes() {
        let float = |id: &&Id| graph.value(**id).dtype == DType::F32;
        bounded[node.out.0] = match node.op {
            Op::LayerNorm { .. } | Op::Softmax | Op::Unary(Unary::Sigmoid | Unary::Tanh) => true,
            // Booleans, and positions.
            Op::Compare(_) | Op::And | Op::Not => true,
            Op::Cast { to: DType::F32 } => graph.value(node.ins[0]).dtype == DType::Bool || bounded[node.ins[0].0],
            _ => node.ins.iter().filter(float).all(|id| bounded[id.0]),
        };
    }
    bounded
}

/// Returns which values are products or lead to one.
fn inner(graph: &Graph) -> Vec<bool> {
    let mut inner = vec![false; graph.values().count()];
    for node in graph.nodes().iter().rev() {
        if inner[node.out.0] || is_product(&node.op) {
            inner[node.out.0] = true;
            node.ins.iter().for_each(|id| inner[id.0] = true);
        }
    }
    inner
}

const fn is_product(op: &Op) -> bool {
    matches!(op, Op::Linear | Op::MatMul)
}

/// Returns whether a node may be in half, given the decisions on all nodes before it.
fn may_be_half(graph: &Graph, node: &Node, bounded: &[bool], half: &[bool], dtype: DType) -> bool {
    let floats: Vec<Id> = node.ins.iter().copied().filter(|id| graph.value(*id).dtype == DType::F32).collect();
    let known = |id: &Id| graph.value(*id).data.is_some();
    let fits = |id: &Id| !known(id) || holds(graph.value(*id), dtype).is_ok();
    let all = !floats.is_empty() && floats.iter().all(|id| bounded[id.0] && fits(id));
    let mut computed = floats.iter().filter(|id| !known(id)).peekable();
    all && match &node.op {
        op if is_product(op) => true,
        Op::Unary(Unary::Neg | Unary::Abs | Unary::Sigmoid | Unary::Tanh | Unary::Gelu | Unary::GeluTanh)
        | Op::Binary(Binary::Mul | Binary::Max | Binary::Min)
        | Op::Where
        | Op::Reshape { .. }
        | Op::Permute { .. }
        | Op::Expand { .. }
        | Op::Slice { .. }
        | Op::Concat { .. }
        | Op::Gather { .. } => computed.peek().is_some() && computed.all(|id| half[id.0]),
        _ => false,
    }
}
