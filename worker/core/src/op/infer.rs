//! Shape rules shared by several operations. A rule looks at shapes and kinds only and says what does not fit.

use super::value::{Meta, Shape};
use crate::error::OpErrorKind;
use smallvec::SmallVec;

/// Metas of an operation's results.
pub type Metas = SmallVec<[Meta; 2]>;

/// Result of a shape rule.
pub type Inferred = Result<Metas, OpErrorKind>;

/// Returns the meta of a single result.
pub fn one(meta: Meta) -> Inferred {
    Ok(SmallVec::from_iter([meta]))
}

/// The rule of operations whose result has the shape and kind of a floating-point operand.
pub fn same_shape<A>(_: &A, ins: &[&Meta]) -> Inferred {
    float(0, ins[0])?;
    one(ins[0].clone())
}

/// The rule of operations that have no result.
pub fn nothing<A>(_: &A, _: &[&Meta]) -> Inferred {
    Ok(Metas::new())
}

/// The position of an axis that may count from the end.
pub fn axis(at: i64, rank: usize) -> Result<usize, OpErrorKind> {
    let wrapped = if at < 0 { at + rank as i64 } else { at };
    if wrapped < 0 || wrapped >= rank as i64 {
        return Err(OpErrorKind::Axis { axis: at, rank });
    }
    Ok(wrapped as usize)
}

/// The shape two operands broadcast to, aligned at the last axis.
pub fn broadcast(left: &[i64], right: &[i64]) -> Result<Shape, OpErrorKind> {
    let rank = left.len().max(right.len());
    let at = |shape: &[i64], i: usize| {
        let missing = rank - shape.len();
        if i < missing { 1 } else { shape[i - missing] }
    };
    (0..rank)
        .map(|i| match (at(left, i), at(right, i)) {
            (a, b) if a == b => Ok(a),
            (1, b) => Ok(b),
            (a, 1) => Ok(a),
            _ => Err(mismatch(left, right, "sizes that are equal or 1, aligned at the last axis")),
        })
        .collect()
}

/// Two shapes that do not fit.
pub fn mismatch(left: &[i64], right: &[i64], expected: &'static str) -> OpErrorKind {
    OpErrorKind::Mismatch { left: left.to_vec(), right: right.to_vec(), expected }
}

/// An operand of a wrong shape.
pub fn wrong(operand: usize, meta: &Meta, expected: &'static str) -> OpErrorKind {
    OpErrorKind::Shape { operand, found: meta.shape.to_vec(), expected }
}

/// Refuses operands whose kind differs from the first one's.
pub fn same_kind(ins: &[&Meta]) -> Result<(), OpErrorKind> {
    for (operand, meta) in ins.iter().enumerate().skip(1) {
        if meta.kind != ins[0].kind {
            return Err(OpErrorKind::Kind { operand, found: meta.kind, expected: "the kind of operand 0" });
        }
    }
    Ok(())
}

/// The kind in which sums over values of `kind` are kept: f32 at least.
pub fn wide(kind: tch::Kind) -> tch::Kind {
    if kind == tch::Kind::Double { kind } else { tch::Kind::Float }
}

/// Refuses an operand that is not of truth values.
pub fn boolean(operand: usize, meta: &Meta) -> Result<(), OpErrorKind> {
    if meta.kind == tch::Kind::Bool {
        return Ok(());
    }
    Err(OpErrorKind::Kind { operand, found: meta.kind, expected: "Bool" })
}

/// Refuses an operand that is not floating point.
pub fn float(operand: usize, meta: &Meta) -> Result<(), OpErrorKind> {
    use tch::Kind::{BFloat16, Double, Float, Half};
    match meta.kind {
        Float | Double | Half | BFloat16 => Ok(()),
        found => Err(OpErrorKind::Kind { operand, found, expected: "a floating-point kind" }),
    }
}
