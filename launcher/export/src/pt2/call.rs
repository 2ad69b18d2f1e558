//! The aten operator of each graph operation.

use crate::spelling::{binary, compare, reduction, unary};
use enn_common::graph::{DType, Dim, Graph, Id, Node, Op, Unary};

/// An argument, under its name in the operator's schema.
pub(super) enum CallArgument<'a> {
    Tensor(Id),
    Tensors(&'a [Id]),
    /// A list of this many `None`s, then a tensor.
    Behind(usize, Id),
    Int(u64),
    Ints(Vec<u64>),
    /// Sizes, one of which may be the batch.
    Sizes(&'a [Dim]),
    Float(f64),
    Bool(bool),
    Kind(DType),
    /// Text that is given by keyword only.
    Keyword(&'static str),
}

/// A call; arguments that equal the schema's default are left out.
pub(super) struct Call<'a> {
    /// Operator and overload.
    pub(super) target: &'static str,
    /// Arguments in the schema's order.
    pub(super) arguments: Vec<(&'static str, CallArgument<'a>)>,
}

pub(super) fn call<'a>(node: &'a Node, graph: &Graph) -> Call<'a> {
    use CallArgument::{Behind, Bool, Float, Int, Ints, Keyword, Kind, Sizes, Tensor, Tensors};
    let ins = &node.ins;
    let first = || ("self", Tensor(ins[0]));
    let two = |target| (target, vec![first(), ("other", Tensor(ins[1]))]);
    let axes = |axes: &[usize]| Ints(axes.iter().map(|axis| *axis as u64).collect());
    let shape = |at: usize| &graph.value(ins[at]).shape;
    let (target, arguments) = match &node.op {
        Op::Unary(Unary::GeluTanh) => ("gelu.default", vec![first(), ("approximate", Keyword("tanh"))]),
        Op::Unary(f) => (unary(*f).aten, vec![first()]),
        Op::Binary(f) => two(binary(*f).aten),
        Op::Compare(f) => two(compare(*f).aten),
        Op::And => two("logical_and.default"),
        Op::Not => ("logical_not.default", vec![first()]),
        Op::Where => {
            let choice = vec![("condition", Tensor(ins[0])), ("self", Tensor(ins[1])), ("other", Tensor(ins[2]))];
            ("where.self", choice)
        }
        Op::Cast { to } => ("to.dtype", vec![first(), ("dtype", Kind(*to))]),
        Op::MatMul => two("matmul.default"),
        Op::Linear => {
            let names = ["input", "weight", "bias"].into_iter();
            ("linear.default", names.zip(ins).map(|(name, id)| (name, Tensor(*id))).collect())
        }
        Op::LayerNorm { eps } => {
            let over = Ints(shape(1).iter().map(|dim| dim.of(1)).collect());
            let scaled = [("weight", Tensor(ins[1])), ("bias", Tensor(ins[2])), ("eps", Float(*eps))];
            (
                "layer_norm.default",
                [("input", Tensor(ins[0])), ("normalized_shape", over)].into_iter().chain(scaled).collect(),
            )
        }
        Op::Softmax => ("softmax.int", vec![first(), ("dim", Int(shape(0).len() as u64 - 1))]),
        // An empty list of axes would mean all of them.
        Op::Reduce { axes, .. } if axes.is_empty() => ("clone.default", vec![first()]),
        Op::Reduce { fold, axes: along, keep } => {
            (reduction(*fold).aten, vec![first(), ("dim", axes(along)), ("keepdim", Bool(*keep))])
        }
        Op::Reshape { shape } => ("reshape.default", vec![first(), ("shape", Sizes(shape))]),
        Op::Permute { axes: order } => ("permute.default", vec![first(), ("dims", axes(order))]),
        Op::Expand { shape } => ("expand.default", vec![first(), ("size", Sizes(shape))]),
        Op::Slice { axis, start, len } => {
            let range = [("dim", Int(*axis as u64)), ("start", Int(*start)), ("end", Int(start + len))];
            ("slice.Tensor", std::iter::once(first()).chain(range).collect())
        }
        Op::Concat { axis } => ("cat.default", vec![("tensors", Tensors(ins)), ("dim", Int(*axis as u64))]),
        Op::Gather { axis: 0 } if shape(0).len() == 2 => {
            ("embedding.default", vec![("weight", Tensor(ins[0])), ("indices", Tensor(ins[1]))])
        }
        Op::Gather { axis } if shape(1).len() == 1 => {
            ("index_select.default", vec![first(), ("dim", Int(*axis as u64)), ("index", Tensor(ins[1]))])
        }
        Op::Gather { axis } => ("index.Tensor", vec![first(), ("indices", Behind(*axis, ins[1]))]),
    };
    Call { target, arguments }
}
