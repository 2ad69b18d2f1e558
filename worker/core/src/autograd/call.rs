//! The only entry to computation: casts the operands of one operation and runs it.

use super::cast;
use super::cx::Cx;
use super::run::run;
use crate::error::OpError;
use crate::op::Op;
use crate::op::value::Tensor;
use crate::op::vjp::Results;
use smallvec::SmallVec;

/// Runs `op` on `ins` and returns its results.
///
/// # Errors
/// With the operation's name and its scope, when operands do not fit or libtorch refuses them.
pub fn call(cx: &Cx<'_>, op: impl Into<Op>, ins: &[&Tensor]) -> Result<Results, OpError> {
    let op = op.into();
    match cast::prepare(cx, &op, ins)? {
        None => run(cx, op, ins),
        Some(cast) => run(cx, cast.op, &cast.ins.iter().collect::<SmallVec<[&Tensor; 4]>>()),
    }
}
