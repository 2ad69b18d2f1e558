//! A call of an operator of libtorch's dispatcher: the operator, and its arguments but for the operands.

use super::instead::instead;
use crate::backend::torch::safe::{ARGS, AnyOp, Arg, Argument};
use crate::op::prelude::*;
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
    Real(F64Bits),
    Bool(bool),
    Ints(Vec<i64>),
    Bools(Vec<bool>),
    /// A list with gaps: a true is the next operand, a false none.
    OperandsWhere(Vec<bool>),
    Reals(Vec<F64Bits>),
    Text(String),
    Kind(Kind),
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
    fn value<'a>(&'a self, own: &'a Own<'a>, first: Option<&'a Raw>) -> Arg<'a> {
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
    operands: &'a [&'a Raw],
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
    pub(super) operator: Arc<AnyOp>,
    pub(super) args: Vec<AtenArg>,
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
    /// The operator writes in place, draws random numbers, or has more operands than are kept.
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

    pub(super) fn call(&self, ins: &[&Raw]) -> Launched {
        Ok(self.with_args(ins, |args| self.operator.call(args))??)
    }

    /// Runs `done` with the arguments of a call with these operands.
    pub(super) fn with_args<T>(&self, ins: &[&Raw], done: impl FnOnce(&[Arg<'_>]) -> T) -> Result<T, OpErrorKind> {
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

    /// Returns the name, e.g. `aten::cumsum`, with the overload if there is one.
    pub fn name(&self) -> &str {
        self.operator.name()
    }

    /// Shape of the result of a convolution that does not spread; `None` for other operators and what it would refuse.
    pub(super) fn convolved(&self, ins: &[&Meta]) -> Option<Shape> {
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
        instead(self.name())
    }
}
