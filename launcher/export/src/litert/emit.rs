//! Emission of every graph operation in LiteRT's operators.

use super::{
    builtin::{self as op, Builtin, Use, version},
    flat::{ModelDraft, Operator, OptionField, TensorDraft, TensorKind},
};
use crate::{
    ExportError,
    model::{joined, on_fewer_axes, signed},
    spelling::{binary, compare, reduction, unary},
};
use enn_common::graph::{DType, Dim, Graph, GraphValue, Id, Node, Op, Unary};
use std::{borrow::Cow, collections::HashMap};

pub(super) const TARGET: &str = "litert";
/// Limit on the axes of LiteRT's CPU kernels.
pub(crate) const AXES_MAX: usize = 6;
const MATMUL_AXES_MAX: usize = 5;

/// Limit on the axes of STRIDED_SLICE in its first version.
const SLICE_AXES_MAX: usize = 4;

/// Index of a tensor.
type At = i32;

#[derive(Debug, Clone)]
struct TensorSpec {
    kind: TensorKind,
    shape: Vec<Dim>,
}

impl TensorSpec {
    fn new(kind: TensorKind, shape: &[Dim]) -> Self {
        Self { kind, shape: shape.to_vec() }
    }
}

/// A writer that turns a graph into a [`ModelDraft`].
pub(super) struct LiteRtEmitter<'a> {
    graph: &'a Graph,
    pub(super) draft: ModelDraft<'a>,
    /// Tensor of each value.
    made: Vec<Option<At>>,
    /// Constants of the operators, by content.
    numbers: HashMap<(TensorKind, Vec<u64>, Vec<u8>), At>,
    /// Masks of a multiple of the batch, false throughout.
    rows: HashMap<u64, At>,
    /// Operation and place of the node that is being written.
    at: (&'static str, &'a str),
}

/// Returns the element type that is written: single precision for half, and 32-bit integers, which every runtime has.
pub(super) const fn kind(dtype: DType) -> TensorKind {
    match dtype {
        DType::F32 | DType::F16 | DType::Bf16 => TensorKind::Float32,
        DType::I64 => TensorKind::Int32,
        DType::Bool => TensorKind::Bool,
    }
}

impl<'a> LiteRtEmitter<'a> {
    /// Makes an emitter with tensors for the inputs.
    pub(super) fn new(graph: &'a Graph) -> Self {
        let made = vec![None; graph.values().count()];
        let mut emitter = Self {
            graph,
            draft: ModelDraft::default(),
            made,
            numbers: HashMap::new(),
            rows: HashMap::new(),
            at: ("input", ""),
        };
        for id in graph.inputs() {
            let value = graph.value(*id);
            let at = emitter.tensor(value.name.clone(), kind(value.dtype), value.shape.clone(), None);
            emitter.made[id.0] = Some(at);
            emitter.draft.inputs.push((&value.name, at));
        }
        emitter
    }

    /// Returns the tensor of a value; a known one is added at its first use.
    fn at(&mut self, id: Id) -> Result<At, ExportError> {
        if let Some(at) = self.made[id.0] {
            return Ok(at);
        }
        let value = self.graph.value(id);
        let data = narrowed(value).map_err(|found| too_large(self.at.0, self.at.1, &value.name, found))?;
        let stored = if value.dtype == DType::F16 { TensorKind::Float16 } else { kind(value.dtype) };
        let mut at = self.tensor(value.name.clone(), stored, value.shape.clone(), Some(data));
        if stored == TensorKind::Float16 {
            // Runtimes expect half-precision weights in this form: they may keep them so, or not.
            at = self.put(op::DEQUANTIZE, &[at], TensorSpec::new(TensorKind::Float32, &value.shape), &[]);
        }
        self.made[id.0] = Some(at);
        Ok(at)
    }

    /// Adds the outputs; one that is an input, known, or output twice is copied.
    pub(super) fn outputs(&mut self) -> Result<(), ExportError> {
        self.at = ("output", "output");
        for id in self.graph.outputs() {
            let value = self.graph.value(*id);
            let mut at = self.at(*id)?;
            let tensor = &self.draft.tensors[at as usize];
            let ports = self.draft.inputs.iter().chain(&self.draft.outputs);
            if tensor.data.is_some() || ports.clone().any(|(_, port)| *port == at) {
                at = self.reshape(at, &value.shape);
            }
            self.draft.outputs.push((&value.name, at));
        }
        Ok(())
    }

    pub(super) fn node(&mut self, node: &'a Node) -> Result<(), ExportError> {
        self.at = (node.op.name(), &node.place);
        let ins = node.ins.iter().map(|id| self.at(*id)).collect::<Result<Vec<At>, _>>()?;
        let out = self.graph.value(node.out);
        let axes = ins.iter().map(|at| self.shape(*at).len()).max().unwrap_or(0).max(out.shape.len());
        if axes > AXES_MAX && !matches!(node.op, Op::Reshape { .. }) {
            let why = format!("it works on {axes} axes, and LiteRT's kernels take {AXES_MAX}");
            return Err(ExportError::unsupported(TARGET, node.op.name(), &node.place, &why, &on_fewer_axes(&node.op)));
        }
        let x = ins[0];
        let to = TensorSpec::new(kind(out.dtype), &out.shape);
        let at = match &node.op {
            Op::Unary(f @ (Unary::Gelu | Unary::GeluTanh)) => {
                self.put(op::GELU, &[x], to, &[OptionField::Bool(0, *f == Unary::GeluTanh)])
            }
            Op::Unary(f) => self.put(unary(*f).litert, &[x], to, &[]),
            Op::Binary(f) => self.put(binary(*f).litert, &ins, to, &[]),
            Op::Compare(f) => self.put(compare(*f).litert, &ins, to, &[]),
            Op::And => self.put(op::LOGICAL_AND, &ins, to, &[]),
            Op::Not => self.put(op::LOGICAL_NOT, &ins, to, &[]),
            Op::Where => self.put(op::SELECT_V2, &ins, to, &[]),
            Op::Cast { .. } => self.cast(x, to),
            Op::MatMul => self.matmul(node, &ins, to)?,
            Op::Linear => self.put(op::FULLY_CONNECTED, &ins, to, &[OptionField::Bool(2, true)]),
            Op::LayerNorm { eps } => self.layer_norm(&ins, to, *eps),
            Op::Softmax => self.put(op::SOFTMAX, &ins, to, &[OptionField::Float(0, 1.0)]),
            Op::Reduce { fold, axes, keep } => self.reduce(reduction(*fold).litert, x, to, axes, *keep),
            Op::Reshape { shape } => self.reshape(x, shape),
            Op::Permute { axes } => {
                let axes = self.axes(axes);
                self.put(op::TRANSPOSE, &[x, axes], to, &[])
            }
            Op::Expand { shape } => self.stretched(node, x, shape)?,
            Op::Slice { axis, start, len } => self.slice(x, &to.shape, *axis, *start, *len),
            Op::Concat { axis } => self.put(op::CONCATENATION, &ins, to, &[OptionField::Int(0, *axis as i32)]),
            Op::Gather { axis } => self.put(op::GATHER, &ins, to, &[OptionField::Int(0, *axis as i32)]),
        };
        if self.graph.outputs().contains(&node.out) {
            self.draft.tensors[at as usize].name.clone_from(&out.name);
        }
        self.made[node.out.0] = Some(at);
        Ok(())
    }

    fn tensor(&mut self, name: String, kind: TensorKind, shape: Vec<Dim>, data: Option<Cow<'a, [u8]>>) -> At {
        self.draft.tensors.push(TensorDraft { name, kind, shape, data });
        self.draft.tensors.len() as At - 1
    }

    fn shape(&self, at: At) -> &[Dim] {
        &self.draft.tensors[at as usize].shape
    }

    fn kind(&self, at: At) -> TensorKind {
        self.draft.tensors[at as usize].kind
    }

    /// Appends an operator; returns its result.
    fn put(&mut self, op: Builtin, ins: &[At], to: TensorSpec, options: &[OptionField]) -> At {
        let TensorSpec { kind, shape } = to;
        let operands = ins.iter().map(|at| &self.draft.tensors[*at as usize]);
        let of = Use {
            operands: ins.len(),
            rank: operands.clone().map(|tensor| tensor.shape.len()).max().unwrap_or(0),
            stretched: operands.clone().any(|tensor| tensor.shape != shape),
            truth: self.kind(ins[0]) == TensorKind::Bool,
        };
        let name = format!("{}/{}", self.at.1, self.draft.tensors.len());
        let out = self.tensor(name, kind, shape, None);
        let version = version(op, of);
        self.draft.operators.push(Operator { op, version, ins: ins.to_vec(), out, options: options.to_vec() });
        out
    }

    /// Emits a matrix product, with its leading axes joined to one where there are more than its kernel takes.
    fn matmul(&mut self, node: &Node, ins: &[At], to: TensorSpec) -> Result<At, ExportError> {
        if to.shape.len() <= MATMUL_AXES_MAX {
            return Ok(self.put(op::BATCH_MATMUL, ins, to, &[]));
        }
        let (lead, square) = to.shape.split_at(to.shape.len() - 2);
        let flat = ins.iter().map(|at| self.flat(node, *at, lead)).collect::<Result<Vec<At>, _>>()?;
        let joined = TensorSpec { kind: to.kind, shape: [&[joined(lead)], square].concat() };
        let made = self.put(op::BATCH_MATMUL, &flat, joined, &[]);
        Ok(self.reshape(made, &to.shape))
    }

    /// Returns an operand of a product with its leading axes broadcast to `lead` and joined to one, or without leading axes.
    fn flat(&mut self, node: &Node, at: At, lead: &[Dim]) -> Result<At, ExportError> {
        let shape = self.shape(at).to_vec();
        let (own, square) = shape.split_at(shape.len() - 2);
        if own.iter().all(|dim| *dim == Dim::ONE) {
            return Ok(self.reshape(at, square));
        }
        let whole = self.stretched(node, at, &[lead, square].concat())?;
        Ok(self.reshape(whole, &[&[joined(lead)], square].concat()))
    }

    fn cast(&mut self, x: At, to: TensorSpec) -> At {
        let from = self.kind(x);
        if from == to.kind {
            return x;
        }
        let options = [OptionField::Byte(0, from as i8), OptionField::Byte(1, to.kind as i8)];
        self.put(op::CAST, &[x], to, &options)
    }

    fn layer_norm(&mut self, ins: &[At], to: TensorSpec, eps: f64) -> At {
        let last = to.shape.len() - 1;
        let mut narrow = to.clone();
        narrow.shape[last] = Dim::ONE;
        let mean = self.reduce(op::MEAN, ins[0], narrow.clone(), &[last], true);
        let centred = self.put(op::SUB, &[ins[0], mean], to.clone(), &[]);
        let square = self.put(op::MUL, &[centred, centred], to.clone(), &[]);
        let variance = self.reduce(op::MEAN, square, narrow.clone(), &[last], true);
        let eps = self.constant(TensorKind::Float32, &[], (eps as f32).to_le_bytes().to_vec());
        let variance = self.put(op::ADD, &[variance, eps], narrow.clone(), &[]);
        let scale = self.put(op::RSQRT, &[variance], narrow, &[]);
        let normed = self.put(op::MUL, &[centred, scale], to.clone(), &[]);
        let normed = self.put(op::MUL, &[normed, ins[1]], to.clone(), &[]);
        self.put(op::ADD, &[normed, ins[2]], to, &[])
    }

    fn reduce(&mut self, op: Builtin, x: At, to: TensorSpec, axes: &[usize], keep: bool) -> At {
        let axes = self.axes(axes);
        self.put(op, &[x, axes], to, &[OptionField::Bool(0, keep)])
    }

    fn reshape(&mut self, x: At, to: &[Dim]) -> At {
        let shape = self.row(&to.iter().map(|dim| signed(*dim) as i32).collect::<Vec<_>>());
        self.put(op::RESHAPE, &[x, shape], TensorSpec::new(self.kind(x), to), &[])
    }

    fn constant(&mut self, kind: TensorKind, shape: &[u64], bytes: Vec<u8>) -> At {
        let key = (kind, shape.to_vec(), bytes);
        if let Some(at) = self.numbers.get(&key) {
            return *at;
        }
        let shape = shape.iter().map(|size| Dim::Fixed(*size)).collect();
        let name = format!("constant/{}", self.numbers.len());
        let at = self.tensor(name, kind, shape, Some(key.2.clone().into()));
        self.numbers.insert(key, at);
        at
    }

    /// Adds a constant vector of sizes or axes.
    fn row(&mut self, values: &[i32]) -> At {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.constant(TensorKind::Int32, &[values.len() as u64], bytes)
    }

    fn axes(&mut self, axes: &[usize]) -> At {
        self.row(&axes.iter().map(|axis| *axis as i32).collect::<Vec<_>>())
    }

    /// Emits a slice of one axis. Masks select the other axes whole, which also holds for another batch; they are joined
    /// where there are more axes than the kernel takes.
    fn slice(&mut self, x: At, to: &[Dim], axis: usize, start: u64, len: u64) -> At {
        let from = self.shape(x).to_vec();
        if from.len() > SLICE_AXES_MAX {
            let [before, after] = [joined(&from[..axis]), joined(&from[axis + 1..])];
            let flat = self.reshape(x, &[before, from[axis], after]);
            let made = self.slice(flat, &[before, Dim::Fixed(len), after], 1, start, len);
            return self.reshape(made, to);
        }
        let along = |value: u64| (0..from.len()).map(|i| if i == axis { value as i32 } else { 0 }).collect::<Vec<_>>();
        let begin = self.row(&along(start));
        let end = self.row(&along(start + len));
        let step = self.row(&vec![1; from.len()]);
        let whole = ((1 << from.len()) - 1) & !(1 << axis);
        let options = [OptionField::Int(0, whole), OptionField::Int(1, whole)];
        self.put(op::STRIDED_SLICE, &[x, begin, end, step], TensorSpec::new(self.kind(x), to), &options)
    }

    /// Broadcasts a tensor to a larger shape. The batch axis comes from selecting between the operand and itself by a mask of that many
    /// rows: so every shape follows from the inputs' shapes before anything runs, which runtimes need to plan their memory.
    fn stretched(&mut self, node: &Node, x: At, to: &[Dim]) -> Result<At, ExportError> {
        let kind = self.kind(x);
        let from = self.shape(x).to_vec();
        let own = |axis: usize| (axis + from.len()).checked_sub(to.len()).map_or(Dim::ONE, |axis| from[axis]);
        // Sizes that the operand lacks: 1 where it lacks nothing.
        let lacks: Vec<Dim> =
            to.iter().enumerate().map(|(i, dim)| if own(i) == *dim { Dim::ONE } else { *dim }).collect();
        let mut made = x;
        let numbers: Vec<u64> = lacks.iter().map(|dim| dim.fixed().unwrap_or(1)).collect();
        if numbers.iter().any(|size| *size != 1) {
            let mask = self.constant(TensorKind::Bool, &numbers, vec![0; numbers.iter().product::<u64>() as usize]);
            let shape =
                to.iter().enumerate().map(|(i, dim)| if lacks[i].is_open() { Dim::ONE } else { *dim }).collect();
            made = self.put(op::SELECT_V2, &[mask, made, made], TensorSpec { kind, shape }, &[]);
        }
        if let Some(axis) = lacks.iter().position(|dim| dim.is_open()) {
            let rows = self.rows(node, to[axis].of(1))?;
            let shape: Vec<Dim> = (0..to.len()).map(|i| if i == axis { to[i] } else { Dim::ONE }).collect();
            let mask = self.reshape(rows, &shape);
            made = self.put(op::SELECT_V2, &[mask, made, made], TensorSpec::new(kind, to), &[]);
        }
        // The result may still lack axes of size 1.
        Ok(if self.shape(made) == to { made } else { self.reshape(made, to) })
    }

    /// Returns a mask of `times` the batch, false throughout, made from the first input that has the batch.
    fn rows(&mut self, node: &Node, times: u64) -> Result<At, ExportError> {
        if let Some(rows) = self.rows.get(&times) {
            return Ok(*rows);
        }
        let (id, _, parts) = crate::model::open_axis(TARGET, self.graph, node)?;
        let input = self.at(id)?;
        let kind = self.kind(input);
        // The first element of every row, as a column.
        let mut column = input;
        for axis in 0..self.shape(input).len() {
            let mut shape = self.shape(column).to_vec();
            if !shape[axis].is_open() && shape[axis] != Dim::ONE {
                shape[axis] = Dim::ONE;
                column = self.slice(column, &shape, axis, 0, 1);
            }
        }
        column = self.reshape(column, &[Dim::BATCH, Dim::Fixed(parts)]);
        if parts > 1 {
            column = self.slice(column, &[Dim::BATCH, Dim::ONE], 1, 0, 1);
        }
        // No number is less than the least.
        let (op, least): (Builtin, Vec<u8>) = match kind {
            TensorKind::Float32 | TensorKind::Float16 => (op::LESS, f32::NEG_INFINITY.to_le_bytes().to_vec()),
            TensorKind::Int32 => (op::LESS, i32::MIN.to_le_bytes().to_vec()),
            TensorKind::Bool => (op::LOGICAL_AND, vec![0]),
        };
        let least = self.constant(kind, &[times], least.repeat(times as usize));
        let truth = TensorSpec::new(TensorKind::Bool, &[Dim::BATCH, Dim::Fixed(times)]);
        let mask = self.put(op, &[column, least], truth, &[]);
        let rows = self.reshape(mask, &[Dim::Batch(times)]);
        self.rows.insert(times, rows);
        Ok(rows)
    }
}

/// Returns known elements in the element type that is written, or the number that does not fit.
fn narrowed(value: &GraphValue) -> Result<Cow<'_, [u8]>, i64> {
    let bytes = &value.data.as_ref().expect("operands come before their use").bytes;
    Ok(match value.dtype {
        DType::F32 | DType::F16 | DType::Bool => Cow::Borrowed(bytes),
        DType::Bf16 => {
            let halves = bytes.chunks_exact(2).map(|b| half::bf16::from_le_bytes([b[0], b[1]]));
            halves.flat_map(|half| half.to_f32().to_le_bytes()).collect()
        }
        DType::I64 => {
            let mut narrow = Vec::with_capacity(bytes.len() / 2);
            for number in value.integers() {
                narrow.extend(i32::try_from(number).map_err(|_| number)?.to_le_bytes());
            }
            narrow.into()
        }
    })
}

fn too_large(op: &str, place: &str, name: &str, found: i64) -> ExportError {
    let why = format!("its operand {name} holds {found}, which does not fit into 32 bits");
    ExportError::unsupported(TARGET, op, place, &why, "export to onnx or tensorflow, which hold integers of 64 bits")
}
