//! Emission of every graph operation in TensorFlow operations.

use super::nodes::{
    AttrValue::{Bool, Int, Kind, Sizes},
    NodeName, Nodes,
};
use crate::{
    ExportError,
    model::{joined_rows, signed},
    spelling::{binary, compare, reduction, unary},
};
use enn_common::graph::{DType, Dim, Graph, GraphValue, Id, Node, Op, Unary};

pub(super) const TARGET: &str = "tensorflow";
/// Limit on the axes of the CPU's softmax kernel.
const SOFTMAX_AXES_MAX: usize = 5;

/// A writer that turns a graph into [`Nodes`].
pub(super) struct TensorFlowEmitter<'a> {
    graph: &'a Graph,
    pub(super) nodes: Nodes,
    made: Vec<Option<NodeName>>,
    /// Name of the number of rows of a call, once it was requested.
    batch: Option<NodeName>,
}

impl<'a> TensorFlowEmitter<'a> {
    /// Makes an emitter with placeholders for the inputs.
    pub(super) fn new(graph: &'a Graph) -> Self {
        let mut nodes = Nodes::new();
        let mut made = vec![None; graph.values().count()];
        for id in graph.inputs() {
            let GraphValue { name, dtype, shape, .. } = graph.value(*id);
            let attributes = [("dtype", Kind(*dtype)), ("shape", super::nodes::AttrValue::Shape(shape))];
            made[id.0] = Some(nodes.named(name, "Placeholder", &[], &attributes));
        }
        Self { graph, nodes, made, batch: None }
    }

    /// Returns the name of a value; a known one is written at its first use.
    pub(super) fn name(&mut self, id: Id) -> NodeName {
        if let Some(name) = &self.made[id.0] {
            return name.clone();
        }
        let value = self.graph.value(id);
        let data = value.data.as_ref().expect("operands come before their use");
        let shape: Vec<u64> = value.shape.iter().map(|dim| dim.of(1)).collect();
        let name = self.nodes.known(&value.name, value.dtype, &shape, &data.bytes);
        self.made[id.0] = Some(name.clone());
        name
    }

    pub(super) fn node(&mut self, node: &Node) -> Result<(), ExportError> {
        self.nodes.enter(&node.place);
        let ins: Vec<NodeName> = node.ins.iter().map(|id| self.name(*id)).collect();
        let values: Vec<&GraphValue> = node.ins.iter().map(|id| self.graph.value(*id)).collect();
        let out = self.graph.value(node.out);
        let t = values[0].dtype;
        let x = &ins[0];
        let name = match &node.op {
            Op::Unary(f) => self.unary(*f, t, x),
            Op::Binary(f) => self.two(binary(*f).tensorflow, t, x, &ins[1]),
            Op::Compare(f) => self.two(compare(*f).tensorflow, t, x, &ins[1]),
            Op::And => self.nodes.node("LogicalAnd", &[x, &ins[1]], &[]),
            Op::Not => self.nodes.node("LogicalNot", &[x], &[]),
            Op::Where => self.nodes.node("SelectV2", &[x, &ins[1], &ins[2]], &[("T", Kind(values[1].dtype))]),
            Op::Cast { to } => self.nodes.node("Cast", &[x], &[("DstT", Kind(*to)), ("SrcT", Kind(t))]),
            Op::MatMul => {
                let attributes = [("T", Kind(t)), ("adj_x", Bool(false)), ("adj_y", Bool(false))];
                self.nodes.node("BatchMatMulV2", &[x, &ins[1]], &attributes)
            }
            Op::Linear => self.linear(&ins, &values, &out.shape),
            Op::LayerNorm { eps } => self.layer_norm(&ins, values[0], *eps),
            Op::Softmax => self.softmax(t, x, &out.shape),
            Op::Reduce { fold, axes, keep } => self.reduce(reduction(*fold).tensorflow, t, x, axes, *keep),
            Op::Reshape { shape } => self.reshape(t, x, shape),
            Op::Permute { axes } => {
                let axes = self.nodes.row(&axes.iter().map(|axis| *axis as i64).collect::<Vec<_>>());
                self.nodes.node("Transpose", &[x, &axes], &[("T", Kind(t)), ("Tperm", Sizes)])
            }
            Op::Expand { shape } => {
                let shape = self.sizes(node, shape)?;
                self.nodes.node("BroadcastTo", &[x, &shape], &[("T", Kind(t)), ("Tidx", Sizes)])
            }
            Op::Slice { axis, start, len } => self.slice(t, x, values[0].shape.len(), *axis, *start, *len),
            Op::Concat { axis } => {
                let axis = self.nodes.size(*axis as i64);
                let operands: Vec<&NodeName> = ins.iter().chain([&axis]).collect();
                let attributes = [("N", Int(ins.len() as i64)), ("T", Kind(t)), ("Tidx", Sizes)];
                self.nodes.node("ConcatV2", &operands, &attributes)
            }
            Op::Gather { axis } => {
                let axis = self.nodes.size(*axis as i64);
                let attributes = [("Taxis", Sizes), ("Tindices", Kind(DType::I64)), ("Tparams", Kind(t))];
                self.nodes.node("GatherV2", &[x, &ins[1], &axis], &attributes)
            }
        };
        self.made[node.out.0] = Some(name);
        Ok(())
    }

    fn one(&mut self, op: &str, t: DType, x: &NodeName) -> NodeName {
        self.nodes.node(op, &[x], &[("T", Kind(t))])
    }

    fn two(&mut self, op: &str, t: DType, a: &NodeName, b: &NodeName) -> NodeName {
        self.nodes.node(op, &[a, b], &[("T", Kind(t))])
    }

    /// Adds an operation with a number as its second operand.
    fn by(&mut self, op: &str, t: DType, x: &NodeName, number: f64) -> NodeName {
        let number = self.nodes.number(t, number);
        self.two(op, t, x, &number)
    }

    fn unary(&mut self, f: Unary, t: DType, x: &NodeName) -> NodeName {
        match f {
            Unary::Gelu => {
                let part = self.by("Mul", t, x, std::f64::consts::FRAC_1_SQRT_2);
                let part = self.one("Erf", t, &part);
                self.gated(t, x, &part)
            }
            Unary::GeluTanh => {
                let square = self.one("Square", t, x);
                let part = self.by("Mul", t, &square, 0.044_715);
                let part = self.by("AddV2", t, &part, 1.0);
                let part = self.two("Mul", t, &part, x);
                let part = self.by("Mul", t, &part, (2.0 / std::f64::consts::PI).sqrt());
                let part = self.one("Tanh", t, &part);
                self.gated(t, x, &part)
            }
            f => self.one(unary(f).tensorflow, t, x),
        }
    }

    /// Computes x/2 · (1 + part).
    fn gated(&mut self, t: DType, x: &NodeName, part: &NodeName) -> NodeName {
        let half = self.by("Mul", t, x, 0.5);
        let part = self.by("AddV2", t, part, 1.0);
        self.two("Mul", t, &half, &part)
    }

    /// Adds a product of two matrices, which every converter recognizes as a dense layer.
    fn linear(&mut self, ins: &[NodeName], values: &[&GraphValue], to: &[Dim]) -> NodeName {
        let t = values[0].dtype;
        let from = &values[0].shape;
        let flat = if from.len() == 2 { ins[0].clone() } else { self.reshape(t, &ins[0], &joined_rows(from)) };
        let attributes = [("T", Kind(t)), ("transpose_a", Bool(false)), ("transpose_b", Bool(true))];
        let mut made = self.nodes.node("MatMul", &[&flat, &ins[1]], &attributes);
        if let Some(bias) = ins.get(2) {
            made = self.nodes.node("BiasAdd", &[&made, bias], &[("T", Kind(t))]);
        }
        if to.len() == 2 { made } else { self.reshape(t, &made, to) }
    }

    /// Adds a softmax of rows, with joined axes where there are more than its kernel takes.
    fn softmax(&mut self, t: DType, x: &NodeName, shape: &[Dim]) -> NodeName {
        if shape.len() <= SOFTMAX_AXES_MAX {
            return self.one("Softmax", t, x);
        }
        let flat = self.reshape(t, x, &joined_rows(shape));
        let made = self.one("Softmax", t, &flat);
        self.reshape(t, &made, shape)
    }

    fn layer_norm(&mut self, ins: &[NodeName], x: &GraphValue, eps: f64) -> NodeName {
        let t = x.dtype;
        let last = x.shape.len() - 1;
        let mean = self.reduce("Mean", t, &ins[0], &[last], true);
        let centred = self.two("Sub", t, &ins[0], &mean);
        let square = self.one("Square", t, &centred);
        let variance = self.reduce("Mean", t, &square, &[last], true);
        let variance = self.by("AddV2", t, &variance, eps);
        let scale = self.one("Rsqrt", t, &variance);
        let normed = self.two("Mul", t, &centred, &scale);
        let normed = self.two("Mul", t, &normed, &ins[1]);
        self.two("AddV2", t, &normed, &ins[2])
    }

    fn reduce(&mut self, op: &str, t: DType, x: &NodeName, axes: &[usize], keep: bool) -> NodeName {
        let axes = self.nodes.row(&axes.iter().map(|axis| *axis as i64).collect::<Vec<_>>());
        self.nodes.node(op, &[x, &axes], &[("T", Kind(t)), ("Tidx", Sizes), ("keep_dims", Bool(keep))])
    }

    fn reshape(&mut self, t: DType, x: &NodeName, to: &[Dim]) -> NodeName {
        let to = self.nodes.row(&to.iter().map(|dim| signed(*dim)).collect::<Vec<_>>());
        self.nodes.node("Reshape", &[x, &to], &[("T", Kind(t)), ("Tshape", Sizes)])
    }

    fn slice(&mut self, t: DType, x: &NodeName, rank: usize, axis: usize, start: u64, len: u64) -> NodeName {
        let mut begin = vec![0; rank];
        let mut size = vec![-1; rank];
        begin[axis] = start as i64;
        size[axis] = len as i64;
        let begin = self.nodes.row(&begin);
        let size = self.nodes.row(&size);
        self.nodes.node("Slice", &[x, &begin, &size], &[("Index", Sizes), ("T", Kind(t))])
    }

    /// Adds a shape as a tensor.
    fn sizes(&mut self, node: &Node, shape: &[Dim]) -> Result<NodeName, ExportError> {
        if shape.iter().all(|dim| !dim.is_open()) {
            return Ok(self.nodes.row(&shape.iter().map(|dim| signed(*dim)).collect::<Vec<_>>()));
        }
        let batch = self.rows(node)?;
        let mut parts = Vec::with_capacity(shape.len());
        for dim in shape {
            parts.push(match dim {
                Dim::Fixed(size) => self.nodes.size(*size as i64),
                Dim::Batch(1) => batch.clone(),
                Dim::Batch(times) => {
                    let times = self.nodes.size(*times as i64);
                    self.nodes.node("Mul", &[&batch, &times], &[("T", Sizes)])
                }
            });
        }
        let attributes = [("N", Int(parts.len() as i64)), ("T", Sizes), ("axis", Int(0))];
        Ok(self.nodes.node("Pack", &parts.iter().collect::<Vec<_>>(), &attributes))
    }

    /// Adds the number of rows of a call, read from the first input that has them.
    fn rows(&mut self, node: &Node) -> Result<NodeName, ExportError> {
        if let Some(batch) = &self.batch {
            return Ok(batch.clone());
        }
        let (id, axis, times) = crate::model::open_axis(TARGET, self.graph, node)?;
        let t = self.graph.value(id).dtype;
        let input = self.name(id);
        self.nodes.enter("batch");
        let shape = self.nodes.node("Shape", &[&input], &[("T", Kind(t)), ("out_type", Sizes)]);
        let axis = axis as i64;
        let begin = self.nodes.row(&[axis]);
        let end = self.nodes.row(&[axis + 1]);
        let step = self.nodes.row(&[1]);
        let attributes = [("Index", Sizes), ("T", Sizes), ("shrink_axis_mask", Int(1))];
        let mut rows = self.nodes.node("StridedSlice", &[&shape, &begin, &end, &step], &attributes);
        if times > 1 {
            let times = self.nodes.size(times as i64);
            rows = self.nodes.node("FloorDiv", &[&rows, &times], &[("T", Sizes)]);
        }
        self.nodes.enter(&node.place);
        self.batch = Some(rows.clone());
        Ok(rows)
    }
}
