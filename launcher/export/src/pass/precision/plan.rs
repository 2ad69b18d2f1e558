//! The choice of nodes that are computed in half precision. Pure.

use super::holds;
use enn_common::graph::{Binary, DType, Graph, Id, Node, Op, Unary};

/// Nodes that are computed in half precision.
pub(super) struct Plan {
    half: Vec<bool>,
}

impl Plan {
    /// Makes the plan of a graph; empty where weights are only stored in half.
    pub(super) fn of(graph: &Graph, dtype: DType, computed: bool) -> Self {
        let mut plan = Self { half: vec![false; graph.values().count()] };
        if computed {
            let bounded = bounded(graph);
            let inner = inner(graph);
            for node in graph.nodes() {
                let bears = Bears { graph, bounded: &bounded, dtype, half: &plan.half };
                plan.half[node.out.0] = inner[node.out.0] && bears.half(node);
            }
        }
        plan
    }

    /// Returns whether a node's result is in half precision.
    pub(super) fn is_half(&self, id: Id) -> bool {
        self.half[id.0]
    }
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

struct Bears<'a> {
    graph: &'a Graph,
    bounded: &'a [bool],
    dtype: DType,
    /// Results of the nodes so far.
    half: &'a [bool],
}

impl Bears<'_> {
    /// Returns whether a node may be in half, given the decisions on all nodes before it.
    fn half(&self, node: &Node) -> bool {
        let floats: Vec<Id> = node.ins.iter().copied().filter(|id| self.graph.value(*id).dtype == DType::F32).collect();
        let known = |id: &Id| self.graph.value(*id).data.is_some();
        let fits = |id: &Id| !known(id) || holds(self.graph.value(*id), self.dtype).is_ok();
        let all = !floats.is_empty() && floats.iter().all(|id| self.bounded[id.0] && fits(id));
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
            | Op::Gather { .. } => computed.peek().is_some() && computed.all(|id| self.half[id.0]),
            _ => false,
        }
    }
}
