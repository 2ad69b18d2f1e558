//! Any operator of libtorch's dispatcher: the way out when the table has no row for it.
//!
//! Shapes come from libtorch itself, which runs the operator on tensors without memory; those of convolutions and group norms from here,
//! for it has none for them. What it writes in place comes from its schema. Gradients come from libtorch's own rules: the reverse is one
//! operation that calls the operator once more and walks back through it. It has no lowering: what has one and is nearest to an operator
//! is known for the usual ones.
//!
//! An operator without operands is refused: what it makes is known before the step (`Cx::constant`). Generators, sparse layouts,
//! complex numbers and names of axes have no argument here; a schema that must have one cannot be called.

use super::Op;
use super::attr::F64Bits;
use super::infer::{Inferred, Metas};
use super::row::{Export, Launch, Launched, OpRow, per_operand, per_result};
use super::sample::{Draw, Sample, normal, sample};
use super::value::{Meta, Shape, Tensor};
use super::vjp::{Grads, Vjp};
use crate::backend::torch::safe::{ARGS, AnyOp, Arg, Argument};
use crate::error::{OpError, OpErrorKind};
use smallvec::{SmallVec, smallvec};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// One argument of a schema, in its order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum AtenArg {
    /// The next operand.
    Operand,
    /// A list of the next operands.
    Operands(usize),
    /// An optional argument left out.
    None,
    /// An integer, or an element kind or a memory format by libtorch's number.
    Int(i64),
    /// A floating-point number.
    Real(F64Bits),
    Bool(bool),
    /// A list of integers.
    Ints(Vec<i64>),
    /// A list of booleans.
    Bools(Vec<bool>),
    /// A list with gaps: a true is the next operand, a false none.
    OperandsWhere(Vec<bool>),
    /// A list of floats.
    Reals(Vec<F64Bits>),
    Text(String),
    /// An element kind.
    Kind(tch::Kind),
    /// The device of the first operand.
    Device,
}

impl AtenArg {
    /// Returns the number of operands that the argument takes.
    fn operands(&self) -> usize {
        match self {
            Self::Operand => 1,
            Self::Operands(n) => *n,
            Self::OperandsWhere(there) => there.iter().filter(|there| **there).count(),
            _ => 0,
        }
    }

    /// Returns the tag of the argument: its position in [`ARGS`].
    fn tag(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Operand => 1,
            Self::Int(_) => 2,
            Self::Real(_) => 3,
            Self::Bool(_) => 4,
            Self::Ints(_) => 5,
            Self::Bools(_) => 6,
            Self::Operands(_) => 7,
            Self::OperandsWhere(_) => 8,
            Self::Reals(_) => 9,
            Self::Text(_) => 10,
            Self::Kind(_) => 11,
            Self::Device => 12,
        }
    }

    /// Returns the numbers of a list of floats; empty for other arguments.
    fn reals(&self) -> Vec<f64> {
        if let Self::Reals(list) = self { list.iter().map(|x| x.get()).collect() } else { Vec::new() }
    }

    /// Converts the argument for the shim. `own` holds converted data, and `first` is the call's first operand.
    fn value<'a>(&'a self, own: &'a Own<'a>, first: Option<&'a tch::Tensor>) -> Arg<'a> {
        let operands = own.operands;
        match self {
            Self::Operand => operands.first().map_or(Arg::None, |tensor| Arg::Tensor(tensor)),
            Self::Operands(_) => Arg::Tensors(operands),
            Self::OperandsWhere(there) => Arg::TensorsWhere(operands, there),
            Self::None => Arg::None,
            Self::Int(i) => Arg::Int(*i),
            Self::Real(x) => Arg::Real(x.get()),
            Self::Bool(b) => Arg::Bool(*b),
            Self::Ints(list) => Arg::Ints(list),
            Self::Bools(list) => Arg::Bools(list),
            Self::Reals(_) => Arg::Reals(&own.reals),
            Self::Text(text) => Arg::Text(text),
            Self::Kind(kind) => Arg::Kind(*kind),
            Self::Device => first.map_or(Arg::None, Arg::DeviceOf),
        }
    }
}

/// Converted data to which one argument of a call points.
struct Own<'a> {
    operands: &'a [&'a tch::Tensor],
    reals: Vec<f64>,
}

/// Refuses an argument of a sort that the schema does not take.
fn fits(operator: &AnyOp, arg: &AtenArg, argument: &Argument) -> Result<(), OpErrorKind> {
    if argument.takes >> arg.tag() & 1 == 1 {
        return Ok(());
    }
    let taken = ARGS.iter().enumerate().filter(|(tag, _)| argument.takes >> tag & 1 == 1);
    let taken: Vec<&str> = taken.map(|(_, words)| *words).collect();
    Err(OpErrorKind::Argument {
        name: operator.name().to_owned(),
        argument: argument.name.clone(),
        found: ARGS[arg.tag()],
        expected: if taken.is_empty() { "what no call from here can give".to_owned() } else { taken.join(" or ") },
    })
}

/// A call of an operator, without its operands.
#[derive(Debug, Clone)]
pub struct AtenCall {
    operator: Arc<AnyOp>,
    args: Vec<AtenArg>,
    /// Whether each operand is written in place.
    writes: SmallVec<[bool; 4]>,
}

impl PartialEq for AtenCall {
    fn eq(&self, other: &Self) -> bool {
        self.operator.name() == other.operator.name() && self.args == other.args
    }
}

impl Eq for AtenCall {}

impl Hash for AtenCall {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.operator.name().hash(state);
        self.args.hash(state);
    }
}

impl AtenCall {
    /// Finds an operator by its schema's name, e.g. `aten::cumsum`, and overload.
    ///
    /// # Errors
    /// When there is none, or its schema has other arguments.
    pub fn new(name: &str, overload: &str, args: Vec<AtenArg>) -> Result<Self, OpErrorKind> {
        let operator = AnyOp::find(name, overload)?;
        let expected = operator.arguments();
        if args.len() != expected.len() {
            return Err(OpErrorKind::Arguments {
                name: operator.name().to_owned(),
                found: args.len(),
                expected: expected.len(),
            });
        }
        let mut writes = SmallVec::new();
        for (arg, argument) in args.iter().zip(expected) {
            fits(&operator, arg, argument)?;
            writes.extend(std::iter::repeat_n(argument.writes, arg.operands()));
        }
        Ok(Self { operator: Arc::new(operator), args, writes })
    }

    /// Number of operands.
    pub fn operands(&self) -> usize {
        self.writes.len()
    }

    /// Whether operand `i` is written in place.
    pub fn writes(&self, i: usize) -> bool {
        self.writes.get(i).copied().unwrap_or(false)
    }

    /// Whether gradients may flow back through it.
    ///
    /// # Errors
    /// It writes in place, draws random numbers, or has more operands than are kept.
    pub fn check_reversible(&self) -> Result<(), OpErrorKind> {
        let refused = |why| Err(OpErrorKind::NoGradient { name: self.name().to_owned(), why });
        if self.writes.contains(&true) {
            return refused("it writes in place");
        }
        if self.operator.draws()? {
            return refused("it draws random numbers, and would draw others when it is called once more");
        }
        if self.operands() > u16::BITS as usize {
            return refused("it has more than 16 operands");
        }
        Ok(())
    }

    fn call(&self, ins: &[&tch::Tensor]) -> Launched {
        Ok(self.with_args(ins, |args| self.operator.call(args))??)
    }

    /// Runs `done` with the arguments of a call with these operands.
    fn with_args<T>(&self, ins: &[&tch::Tensor], done: impl FnOnce(&[Arg<'_>]) -> T) -> Result<T, OpErrorKind> {
        let mut next = ins;
        let mut owns: SmallVec<[Own<'_>; 12]> = SmallVec::new();
        for arg in &self.args {
            let (now, later) = next.split_at_checked(arg.operands()).ok_or(OpErrorKind::Arguments {
                name: self.operator.name().to_owned(),
                found: ins.len(),
                expected: self.operands(),
            })?;
            next = later;
            owns.push(Own { operands: now, reals: arg.reals() });
        }
        let first = ins.first().copied();
        let args: SmallVec<[Arg<'_>; 12]> =
            self.args.iter().zip(&owns).map(|(arg, own)| arg.value(own, first)).collect();
        Ok(done(&args))
    }
}

/// The reverse of a call.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AtenReverse {
    call: AtenCall,
    /// Whether each of its results has a gradient: these are the first operands.
    given: SmallVec<[bool; 2]>,
    /// Whether each of its operands, which follow, gets one.
    wanted: SmallVec<[bool; 4]>,
}

impl AtenReverse {
    /// Name of the operator whose reverse it is.
    pub fn name(&self) -> &str {
        self.call.name()
    }
}

/// Rows of Aten and AtenBackward.
pub static ROWS: [OpRow; 2] = [
    OpRow::forward("aten", shape, launch, vjp, samples).saves(u16::MAX, 0).flops(flops).export(Export::no(
        "an operator of libtorch's dispatcher, of which only libtorch knows what it computes",
        "functions of enn_worker::functional, which all leave but the losses",
    )),
    OpRow::backward("aten_backward", shape_backward, launch_backward).flops(flops_backward),
];

/// The row of an operation of this file.
pub(super) fn row(op: &Op) -> &'static OpRow {
    &ROWS[usize::from(matches!(op, Op::AtenBackward(_)))]
}

/// Exportable operations that compute the same as some operators, or that are nearest to them, by operator name without
/// namespace.
pub const INSTEAD: &[(&[&str], &str)] = &[
    (&["cumsum"], "functional::matmul with a triangle of ones"),
    (
        &["cumprod"],
        "functional::exp of functional::matmul of functional::log with a triangle of ones, for positive numbers",
    ),
    (&["prod"], "functional::exp of functional::sum of functional::log, for positive numbers"),
    (&["var", "std", "var_mean", "std_mean"], "functional::mean of functional::square of what functional::mean leaves"),
    (&["norm", "linalg_vector_norm", "linalg_norm"], "functional::sqrt of functional::sum of functional::square"),
    (&["amax", "max"], "functional::max_dim"),
    (&["amin", "min"], "functional::neg of functional::max_dim of functional::neg"),
    (&["maximum", "minimum"], "functional::where_ with functional::at_least of the difference and 0"),
    (
        &["sort", "argsort", "topk", "argmax", "argmin", "median"],
        "functional::max_dim, or weights by functional::softmax: an order has no way out",
    ),
    (&["pow"], "functional::square, or functional::exp of a multiple of functional::log"),
    (&["rsqrt"], "functional::reciprocal of functional::sqrt"),
    (&["leaky_relu", "elu", "selu", "celu"], "functional::relu, functional::silu or functional::gelu"),
    (&["hardtanh", "clamp_min", "clamp_max", "relu6"], "functional::clamp"),
    (&["floor", "trunc", "round", "ceil"], "functional::cast to i64 and back, which cuts fractions off"),
    (&["eq", "ge", "gt", "le", "lt", "ne"], "functional::at_least and functional::below of the difference and 0"),
    (&["logical_and", "logical_or", "logical_not"], "functional::and and functional::not"),
    (&["isnan", "isinf", "isfinite", "nan_to_num"], "functional::is_finite and functional::where_"),
    (&["masked_fill", "masked_select"], "functional::where_"),
    (&["einsum", "mm", "bmm", "addmm", "baddbmm", "mv", "dot", "outer"], "functional::matmul"),
    (
        &["conv1d", "conv2d", "convolution"],
        "functional::linear of parts by functional::narrow that functional::cat joins",
    ),
    (&["native_layer_norm", "group_norm", "batch_norm", "instance_norm"], "functional::layer_norm"),
    (&["_softmax", "_safe_softmax"], "functional::softmax"),
    (&["_log_softmax", "logsumexp"], "functional::log_softmax"),
    (&["scaled_dot_product_attention"], "functional::sdpa"),
    (
        &["gather", "index", "take", "take_along_dim"],
        "functional::index_select, or functional::embedding of a table's rows",
    ),
    (&["select", "slice", "chunk", "unbind", "diff"], "functional::narrow"),
    (&["view", "flatten", "unflatten", "ravel"], "functional::reshape"),
    (&["t", "movedim", "swapaxes", "numpy_T"], "functional::transpose"),
    (&["repeat", "tile", "broadcast_to", "expand_as", "repeat_interleave"], "functional::expand"),
    (&["concat", "concatenate", "hstack", "vstack"], "functional::cat"),
    (&["roll"], "functional::cat of two parts by functional::narrow"),
    (&["pad", "constant_pad_nd"], "functional::cat with functional::zeros"),
    (
        &["rand", "randn", "bernoulli", "rand_like", "randn_like"],
        "functional::dropout, which does nothing in an exported model",
    ),
    (&["sin", "cos", "tan"], "a table of them that functional::embedding reads"),
    (&["erf"], "functional::gelu, in which it is"),
];

/// Operators that a function of the same name replaces.
pub const SAME: [&str; 43] = [
    "abs",
    "add",
    "cat",
    "clamp",
    "detach",
    "div",
    "dropout",
    "embedding",
    "exp",
    "expand",
    "flip",
    "gelu",
    "index_select",
    "layer_norm",
    "linear",
    "log",
    "log_softmax",
    "matmul",
    "mean",
    "mul",
    "narrow",
    "neg",
    "ones",
    "permute",
    "reciprocal",
    "relu",
    "reshape",
    "rms_norm",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "sub",
    "sum",
    "tanh",
    "transpose",
    "unsqueeze",
    "zeros",
];

impl AtenCall {
    /// Returns the name, e.g. `aten::cumsum`, with the overload if there is one.
    pub fn name(&self) -> &str {
        self.operator.name()
    }

    /// Shape of the result of a convolution that does not spread; `None` for other operators and what it would refuse.
    fn convolved(&self, ins: &[&Meta]) -> Option<Shape> {
        use AtenArg::{Bool, Int, Ints};
        let lists = match (self.name(), self.args.get(3..)?) {
            ("aten::convolution", [Ints(by), Ints(pad), Ints(apart), Bool(false), _, Int(_)])
            | ("aten::conv1d" | "aten::conv2d" | "aten::conv3d", [Ints(by), Ints(pad), Ints(apart), Int(_)]) => {
                [by, pad, apart]
            }
            _ => return None,
        };
        let x = &ins.first()?.shape;
        let weight = &ins.get(1)?.shape;
        let [made, _, window @ ..] = weight.as_slice() else { return None };
        // Rows, channels, and the axes along which the window moves; or without rows.
        let batch = (x.len() + 1).checked_sub(weight.len()).filter(|batch| *batch <= 1)?;
        let mut shape: Shape = x.get(..batch)?.into();
        shape.push(*made);
        for (axis, (size, width)) in x.get(batch + 1..)?.iter().zip(window).enumerate() {
            // One number is that of all axes.
            let [by, pad, apart] = lists.map(|list| list.get(axis).or(list.first()).copied());
            let by = by.filter(|by| *by > 0)?;
            let room = size + 2 * pad? - apart? * (width - 1) - 1;
            shape.push((room >= 0).then(|| room / by + 1)?);
        }
        Some(shape)
    }

    /// Returns the nearest operation that can be exported.
    pub fn instead(&self) -> Option<String> {
        let name = self.name().strip_prefix("aten::")?.split('.').next()?;
        let plain = name.strip_suffix('_').unwrap_or(name);
        if SAME.contains(&plain) {
            return Some(format!("functional::{plain}"));
        }
        let found = INSTEAD.iter().find(|(names, _)| names.contains(&plain))?;
        Some(found.1.to_owned())
    }
}

fn shape(op: &Op, ins: &[&Meta]) -> Inferred {
    let Op::Aten(call) = op else { unreachable!("row of another operation") };
    let Some(device) = ins.first().map(|meta| meta.device) else {
        let expected = "at least one\nhint: what needs no operand is known before the step, a Cx::constant";
        return Err(OpErrorKind::Attribute { name: "number of operands", found: 0.0, expected });
    };
    let known = if call.name() == "aten::group_norm" { Some(ins[0].shape.clone()) } else { call.convolved(ins) };
    if let Some(shape) = known {
        return Ok(smallvec![Meta { shape, ..ins[0].clone() }]);
    }
    let hollow = ins.iter().map(|meta| AnyOp::hollow(&meta.shape, meta.kind)).collect::<Result<Vec<_>, _>>()?;
    let made = call.call(&hollow.iter().collect::<Vec<_>>())?;
    // What is written in place comes back as a result of the schema.
    Ok(made.iter().map(|raw| Meta { shape: raw.size().into(), kind: raw.kind(), device }).collect::<Metas>())
}

fn launch(op: &Op, l: &Launch<'_>) -> Launched {
    let Op::Aten(call) = op else { unreachable!("row of another operation") };
    call.call(l.ins)
}

fn vjp(v: &Vjp<'_>) -> Result<Grads, OpError> {
    let Op::Aten(call) = v.op() else { unreachable!("row of another operation") };
    let given = v.gouts.iter().map(Option::is_some).collect();
    let wanted = (0..v.arity()).map(|i| v.needs(i)).collect();
    let mut ins: SmallVec<[&Tensor; 8]> = v.gouts.iter().flatten().collect();
    for i in 0..v.arity() {
        ins.push(v.input(i as u8)?);
    }
    let reverse = AtenReverse { call: (**call).clone(), given, wanted };
    let mut made = v.call_all(Op::AtenBackward(Box::new(reverse)), &ins)?.into_iter();
    Ok((0..v.arity()).map(|i| if v.needs(i) { made.next() } else { None }).collect())
}

/// The gradients that are given, and the operands of the call.
fn parted<'a, T>(reverse: &AtenReverse, ins: &'a [T]) -> (&'a [T], &'a [T]) {
    ins.split_at(reverse.given.iter().filter(|given| **given).count())
}

fn shape_backward(op: &Op, ins: &[&Meta]) -> Inferred {
    let Op::AtenBackward(reverse) = op else { unreachable!("row of another operation") };
    let (_, operands) = parted(reverse, ins);
    let wanted = operands.iter().zip(&reverse.wanted).filter(|(_, wanted)| **wanted);
    Ok(wanted.map(|(meta, _)| (*meta).clone()).collect())
}

fn launch_backward(op: &Op, l: &Launch<'_>) -> Launched {
    let Op::AtenBackward(reverse) = op else { unreachable!("row of another operation") };
    let (gradients, operands) = parted(reverse, l.ins);
    let mut next = gradients.iter().copied();
    let given: SmallVec<[Option<&tch::Tensor>; 2]> =
        reverse.given.iter().map(|given| if *given { next.next() } else { None }).collect();
    let AtenReverse { call, wanted, .. } = &**reverse;
    Ok(call.with_args(operands, |args| call.operator.gradients(args, &given, wanted))??)
}

/// The call once more, and as much for a gradient of what it multiplies, for each of two.
fn flops_backward(op: &Op, ins: &[&Meta], _: &[Meta]) -> u64 {
    let Op::AtenBackward(reverse) = op else { unreachable!("row of another operation") };
    let (gradients, operands) = parted(reverse, ins);
    let made: Metas = gradients.iter().map(|meta| (*meta).clone()).collect();
    3 * cost(&reverse.call, op, operands, &made)
}

fn samples(d: &mut Draw) -> Vec<Sample> {
    use AtenArg::{Bool, Int, Ints, None, Operand, Operands};
    let a = d.size(2, 4);
    let b = d.size(5, 7);
    let made = |name: &str, overload: &str, args: Vec<AtenArg>, ins: Vec<super::sample::Operand>| {
        let call = AtenCall::new(name, overload, args);
        call.ok().map(|call| sample(Op::Aten(Box::new(call)), ins))
    };
    let cumsum = || vec![Operand, Int(-1), None];
    let convolution = vec![
        Operand,
        Operand,
        Operand,
        Ints(vec![2]),
        Ints(vec![1]),
        Ints(vec![1]),
        Bool(false),
        Ints(vec![0]),
        Int(1),
    ];
    let all = [
        made("aten::cumsum", "", cumsum(), vec![normal(&[a, b])]),
        made("aten::cumsum", "", cumsum(), vec![normal(&[b, a, 3]).transposed()]),
        made("aten::cumsum", "", cumsum(), vec![normal(&[0, b])]),
        made("aten::convolution", "", convolution, vec![normal(&[2, 3, b]), normal(&[a, 3, 3]), normal(&[a])]),
        made("aten::hstack", "", vec![Operands(2)], vec![normal(&[a, b]), normal(&[a, 2])]),
    ];
    all.into_iter().flatten().collect()
}

fn flops(op: &Op, ins: &[&Meta], outs: &[Meta]) -> u64 {
    let Op::Aten(call) = op else { unreachable!("row of another operation") };
    cost(call, op, ins, outs)
}

/// A product's multiplications and additions, told from its operands; of other operators one per element of the first result. Of the
/// call `op` itself, or of the one that it is the reverse of.
fn cost(call: &AtenCall, op: &Op, ins: &[&Meta], outs: &[Meta]) -> u64 {
    let name = call.name().strip_prefix("aten::").and_then(|name| name.split('.').next()).unwrap_or_default();
    let made = per_result::<1>(op, ins, outs);
    let last = |i: usize| ins.get(i).and_then(|meta| meta.shape.last()).copied();
    let (numbers, each) = match name.strip_suffix('_').unwrap_or(name) {
        "mm" | "bmm" | "matmul" | "linear" | "mv" | "dot" => (made, last(0)),
        "addmm" | "baddbmm" | "addmv" => (made, last(1)),
        "conv1d" | "conv2d" | "conv3d" | "convolution" => {
            // A transposed one spreads each of its numbers instead of gathering each of its results.
            let spreads = matches!(call.args.get(6), Some(AtenArg::Bool(true)));
            let window = ins.get(1).map(|weight| weight.shape.iter().skip(1).product());
            (if spreads { per_operand::<1>(op, ins, outs) } else { made }, window)
        }
        _ => return made,
    };
    2 * numbers * each.unwrap_or(0).max(0).cast_unsigned()
}
