//! Emission of every graph operation in MIL.

use super::{
    block::{Arg, Block, NamedArg, cast, concat, refused, x, xy},
    mil::{MilKind, OpResult, Type},
};
use crate::{
    ExportError,
    model::signed,
    spelling::{binary, compare, reduction, unary},
};
use enn_common::graph::{Dim, GraphValue, Node, Op, Unary};

/// Limit on the axes of a `linear` operation's input.
const LINEAR_RANK_MAX: usize = 3;

impl Block<'_> {
    /// Appends the operations that compute a node.
    pub(super) fn node(&mut self, node: &Node) -> Result<(), ExportError> {
        let graph = self.graph;
        let value = graph.value(node.out);
        let ty = Type::new(MilKind::of(value.dtype), &value.shape);
        let is_port = graph.outputs().contains(&node.out) && ty.kind != MilKind::Bool;
        let name = if is_port { value.name.clone() } else { self.fresh(&value.name) };
        let ins: Vec<String> = match node.op {
            // `expand` reads its operand's elements itself.
            Op::Expand { .. } => Vec::new(),
            _ => node.ins.iter().map(|id| self.name(*id)).collect(),
        };
        let operands: Vec<&GraphValue> = node.ins.iter().map(|id| graph.value(*id)).collect();
        let one = || x(&ins[0]);
        let two = || xy(&ins[0], &ins[1]);
        let out = OpResult::new(&name, &ty);
        match &node.op {
            Op::Unary(f) => self.unary(*f, &ins[0], out),
            Op::Binary(f) => self.op(binary(*f).coreml, &two(), out),
            Op::Compare(f) => self.op(compare(*f).coreml, &two(), out),
            Op::And => self.op("logical_and", &two(), out),
            Op::Not => self.op("logical_not", &[one()], out),
            Op::Where => self.choice(&ins, &operands, out),
            Op::Cast { .. } if MilKind::of(operands[0].dtype) == ty.kind => self.op("identity", &[one()], out),
            Op::Cast { .. } => self.op("cast", &cast(&ins[0], ty.kind), out),
            Op::MatMul => self.product(&ins, false, out),
            Op::Linear => self.linear(&ins, &operands, out),
            Op::LayerNorm { eps } => self.norm(&ins, *eps as f32, &operands, out),
            Op::Softmax => self.op("softmax", &[one(), ("axis", Arg::Int(-1))], out),
            Op::Reduce { fold, axes, keep } => {
                let args = [one(), ("axes", Arg::Ints(ints(axes))), ("keep_dims", Arg::Bool(*keep))];
                self.op(reduction(*fold).coreml, &args, out);
            }
            Op::Reshape { shape } => self.op("reshape", &[one(), ("shape", sizes(shape))], out),
            Op::Permute { axes } => self.op("transpose", &[one(), ("perm", Arg::Ints(ints(axes)))], out),
            Op::Expand { .. } => self.expand(node, out)?,
            Op::Slice { axis, start, len } => self.slice(&ins[0], *axis, *start, *len, out),
            Op::Concat { axis } => self.op("concat", &concat(ins.clone(), *axis), out),
            Op::Gather { axis } => self.gather(&ins, operands[0], *axis, out),
        }
        self.names.insert(node.out, name);
        Ok(())
    }

    fn unary(&mut self, f: Unary, name: &str, out: OpResult<'_>) {
        let kind = out.ty.kind;
        let more = match f {
            Unary::Neg => Some(("y", Arg::Number(kind, -1.0))),
            // The smallest positive number, as coremltools writes it.
            Unary::Log => Some(("epsilon", Arg::Number(kind, f32::from_bits(1)))),
            Unary::Gelu => Some(("mode", Arg::Text("EXACT"))),
            Unary::GeluTanh => Some(("mode", Arg::Text("TANH_APPROXIMATION"))),
            Unary::Exp | Unary::Sqrt | Unary::Abs | Unary::Sigmoid | Unary::Tanh => None,
        };
        let args: Vec<NamedArg<'_>> = [x(name)].into_iter().chain(more).collect();
        self.op(unary(f).coreml, &args, out);
    }

    /// Emits a choice. `select` has the shape of its alternatives, so one is broadcast to the condition's shape where that is larger.
    fn choice(&mut self, ins: &[String], operands: &[&GraphValue], out: OpResult<'_>) {
        let OpResult { name, ty } = out;
        let [cond, a, b] = [0, 1, 2].map(|at| ins[at].as_str());
        if ty.kind == MilKind::Bool {
            let taken = self.step("logical_and", &xy(cond, a), out);
            let not = Type::new(MilKind::Bool, &operands[0].shape);
            let not = self.step("logical_not", &[x(cond)], out.typed(&not));
            let left = self.step("logical_and", &xy(&not, b), out);
            self.op("logical_or", &xy(&taken, &left), out);
            return;
        }
        let full = operands[1..].iter().any(|operand| operand.shape == ty.shape);
        let wide = if full {
            a.to_owned()
        } else {
            let like = Type::new(ty.kind, &operands[0].shape);
            let mask = self.step("cast", &cast(cond, ty.kind), out.typed(&like));
            let zeros = self.step("mul", &[x(&mask), ("y", Arg::Number(ty.kind, 0.0))], out.typed(&like));
            // The common shape of condition and alternative; broadcasting `b` completes it.
            let shape = stretched(&operands[1].shape, &operands[0].shape);
            self.step("add", &xy(a, &zeros), OpResult::new(name, &Type::new(ty.kind, &shape)))
        };
        self.op("select", &[("cond", Arg::Name(cond)), ("a", Arg::Name(&wide)), ("b", Arg::Name(b))], out);
    }

    fn product(&mut self, ins: &[String], transposed: bool, out: OpResult<'_>) {
        let sides = [("transpose_x", Arg::Bool(false)), ("transpose_y", Arg::Bool(transposed))];
        self.op("matmul", &[&xy(&ins[0], &ins[1])[..], &sides].concat(), out);
    }

    fn linear(&mut self, ins: &[String], operands: &[&GraphValue], out: OpResult<'_>) {
        let known = operands[1..].iter().all(|operand| operand.data.is_some());
        if known && (2..=LINEAR_RANK_MAX).contains(&out.ty.shape.len()) {
            let mut args = vec![x(&ins[0]), ("weight", Arg::Name(&ins[1]))];
            args.extend(ins.get(2).map(|bias| ("bias", Arg::Name(bias))));
            return self.op("linear", &args, out);
        }
        let Some(bias) = ins.get(2) else { return self.product(ins, true, out) };
        let made = self.fresh(out.name);
        self.product(ins, true, out.named(&made));
        self.op("add", &xy(&made, bias), out);
    }

    fn norm(&mut self, ins: &[String], eps: f32, operands: &[&GraphValue], out: OpResult<'_>) {
        let mut args = vec![x(&ins[0]), ("axes", Arg::Ints(vec![-1]))];
        let eps = ("epsilon", Arg::Number(out.ty.kind, eps));
        if operands[1..].iter().all(|operand| operand.data.is_some()) {
            args.extend([("gamma", Arg::Name(&ins[1])), ("beta", Arg::Name(&ins[2])), eps]);
            return self.op("layer_norm", &args, out);
        }
        args.push(eps);
        let plain = self.step("layer_norm", &args, out);
        let scaled = self.step("mul", &xy(&plain, &ins[1]), out);
        self.op("add", &xy(&scaled, &ins[2]), out);
    }

    /// Emits a tile with the number of copies along each axis. The batch is read from an input's shape at run time.
    fn expand(&mut self, node: &Node, out: OpResult<'_>) -> Result<(), ExportError> {
        let OpResult { name, ty } = out;
        let value = self.graph.value(node.ins[0]);
        let new = ty.shape.len() - value.shape.len();
        let from: Vec<Dim> = std::iter::repeat_n(Dim::ONE, new).chain(value.shape.iter().copied()).collect();
        let operand = if new == 0 {
            self.name(node.ins[0])
        } else if value.data.is_some() && value.shape.is_empty() {
            let known = self.fresh(name);
            self.known(value, &from, &known);
            known
        } else {
            let narrow = self.name(node.ins[0]);
            let wide = Type::new(ty.kind, &from);
            self.step("reshape", &[x(&narrow), ("shape", sizes(&from))], out.typed(&wide))
        };
        let copies: Vec<Dim> =
            from.iter().zip(&ty.shape).map(|(from, to)| if from == to { Dim::ONE } else { *to }).collect();
        if let Some(fixed) = copies.iter().map(|dim| dim.fixed().map(|size| size as i32)).collect::<Option<Vec<i32>>>()
        {
            self.op("tile", &[x(&operand), ("reps", Arg::Ints(fixed))], out);
            return Ok(());
        }
        let one = Type::new(MilKind::I32, &[Dim::ONE]);
        let mut parts = Vec::new();
        for dim in &copies {
            parts.extend(match *dim {
                Dim::Fixed(size) => self.argument(name, &Arg::Ints(vec![size as i32])),
                Dim::Batch(1) => vec![self.rows(node)?],
                Dim::Batch(times) => {
                    let rows = self.rows(node)?;
                    vec![self.step("mul", &[x(&rows), ("y", Arg::Int(times as i32))], out.typed(&one))]
                }
            });
        }
        let row = Type::new(MilKind::I32, &[Dim::Fixed(copies.len() as u64)]);
        let reps = self.step("concat", &concat(parts, 0), out.typed(&row));
        self.op("tile", &[x(&operand), ("reps", Arg::Name(&reps))], out);
        Ok(())
    }

    fn rows(&mut self, node: &Node) -> Result<String, ExportError> {
        let why = "no input has the batch as an axis, so that its size is not known there";
        self.batch().ok_or_else(|| refused(node.op.name(), &node.place, why, "give the model an input of the batch"))
    }

    /// Emits a gather. Booleans are gathered as integers: the operation takes no booleans.
    fn gather(&mut self, ins: &[String], from: &GraphValue, axis: usize, out: OpResult<'_>) {
        let at = [
            ("indices", Arg::Name(&ins[1])),
            ("axis", Arg::Int(axis as i32)),
            ("batch_dims", Arg::Int(0)),
            ("validate_indices", Arg::Bool(false)),
        ];
        let of = |name| [&[x(name)], &at[..]].concat();
        if out.ty.kind != MilKind::Bool {
            return self.op("gather", &of(&ins[0]), out);
        }
        let [whole, wide] = [&out.ty.shape, &from.shape].map(|shape| Type::new(MilKind::I32, shape));
        let numbers = self.step("cast", &cast(&ins[0], MilKind::I32), out.typed(&wide));
        let picked = self.step("gather", &of(&numbers), out.typed(&whole));
        self.op("cast", &cast(&picked, MilKind::Bool), out);
    }

    fn slice(&mut self, from: &str, axis: usize, start: u64, len: u64, out: OpResult<'_>) {
        let rank = out.ty.shape.len();
        let only = |value: u64| (0..rank).map(|at| if at == axis { value as i32 } else { 0 }).collect();
        let others: Vec<bool> = (0..rank).map(|at| at != axis).collect();
        let args = [
            x(from),
            ("begin", Arg::Ints(only(start))),
            ("end", Arg::Ints(only(start + len))),
            ("begin_mask", Arg::Bools(others.clone())),
            ("end_mask", Arg::Bools(others)),
        ];
        self.op("slice_by_index", &args, out);
    }
}

/// Returns sizes as a reshape takes them; −1 stands for the remaining size.
fn sizes(shape: &[Dim]) -> Arg<'static> {
    Arg::Ints(shape.iter().map(|dim| signed(*dim) as i32).collect())
}

fn ints(axes: &[usize]) -> Vec<i32> {
    axes.iter().map(|axis| *axis as i32).collect()
}

/// Returns the shape to which two shapes broadcast.
fn stretched(a: &[Dim], b: &[Dim]) -> Vec<Dim> {
    let rank = a.len().max(b.len());
    let size = |shape: &[Dim], axis: usize| (axis + shape.len()).checked_sub(rank).map_or(Dim::ONE, |at| shape[at]);
    (0..rank).map(|axis| if size(a, axis) == Dim::ONE { size(b, axis) } else { size(a, axis) }).collect()
}
