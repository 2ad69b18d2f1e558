//! Any operator of libtorch's dispatcher: the way out when the table has no row for it.
//!
//! Shapes come from libtorch itself, which runs the operator on tensors without memory; what it writes in place comes from
//! its schema. It has no reverse rule here and no lowering: it serves what needs neither.

use super::Op;
use super::attr::F64Bits;
use super::infer::{Inferred, Metas};
use super::row::{Export, Launch, Launched, OpRow};
use super::value::Meta;
use crate::backend::torch::safe::{AnyOp, Arg};
use crate::error::OpErrorKind;
use smallvec::SmallVec;
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
    /// An integer, or an element kind by libtorch's number.
    Int(i64),
    /// A float.
    Real(F64Bits),
    /// A boolean.
    Bool(bool),
    /// A list of integers.
    Ints(Vec<i64>),
    /// A list of booleans.
    Bools(Vec<bool>),
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
    /// When there is none, or its schema has another number of arguments.
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
        for (arg, written) in args.iter().zip(expected) {
            match arg {
                AtenArg::Operand => writes.push(*written),
                AtenArg::Operands(n) => writes.extend(std::iter::repeat_n(*written, *n)),
                _ => {}
            }
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

    fn call(&self, ins: &[&tch::Tensor]) -> Launched {
        let mut next = ins;
        let mut lists: Vec<&[&tch::Tensor]> = Vec::new();
        for arg in &self.args {
            let take = match arg {
                AtenArg::Operand => 1,
                AtenArg::Operands(n) => *n,
                _ => 0,
            };
            let (now, later) = next.split_at_checked(take).ok_or(OpErrorKind::Arguments {
                name: self.operator.name().to_owned(),
                found: ins.len(),
                expected: self.operands(),
            })?;
            next = later;
            lists.push(now);
        }
        let args: SmallVec<[Arg<'_>; 12]> = self.args.iter().zip(&lists).map(|(arg, now)| value(arg, now)).collect();
        Ok(self.operator.call(&args)?)
    }
}

fn value<'a>(arg: &'a AtenArg, operands: &'a [&'a tch::Tensor]) -> Arg<'a> {
    match arg {
        AtenArg::Operand => operands.first().map_or(Arg::None, |tensor| Arg::Tensor(tensor)),
        AtenArg::Operands(_) => Arg::Tensors(operands),
        AtenArg::None => Arg::None,
        AtenArg::Int(i) => Arg::Int(*i),
        AtenArg::Real(x) => Arg::Real(x.get()),
        AtenArg::Bool(b) => Arg::Bool(*b),
        AtenArg::Ints(list) => Arg::Ints(list),
        AtenArg::Bools(list) => Arg::Bools(list),
    }
}

/// Aten.
pub static ROWS: [OpRow; 1] = [OpRow::backward("aten", shape, launch)
    .export(Export::No("an operator of libtorch's dispatcher that has no row of its own"))];

fn shape(op: &Op, ins: &[&Meta]) -> Inferred {
    let Op::Aten(call) = op else { unreachable!("row of another operation") };
    let Some(device) = ins.first().map(|meta| meta.device) else {
        return Err(OpErrorKind::Attribute { name: "number of operands", found: 0.0, expected: "at least one" });
    };
    let hollow = ins.iter().map(|meta| AnyOp::hollow(&meta.shape, meta.kind)).collect::<Result<Vec<_>, _>>()?;
    let made = call.call(&hollow.iter().collect::<Vec<_>>())?;
    // What is written in place comes back as a result of the schema.
    Ok(made.iter().map(|raw| Meta { shape: raw.size().into(), kind: raw.kind(), device }).collect::<Metas>())
}

fn launch(op: &Op, l: &Launch<'_>) -> Launched {
    let Op::Aten(call) = op else { unreachable!("row of another operation") };
    call.call(l.ins)
}
