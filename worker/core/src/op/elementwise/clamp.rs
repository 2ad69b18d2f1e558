//! Numbers kept between two bounds; no gradient flows where they are not.

use crate::op::elementwise::{bounded, smooth};
use crate::op::prelude::*;
use enn_common::graph::{Compare, Id};

attributes! {
    Clamp { lo: F64Bits, hi: F64Bits } => CLAMP;
    /// The reverse. Operands: the gradient, and what was clamped.
    ClampBackward { lo: F64Bits, hi: F64Bits } => CLAMP_BACKWARD;
}

const CLAMP: OpRow<Clamp> = OpRow::<Clamp>::forward(
    "clamp",
    same_shape,
    |op, l| Ok(smallvec![l.at(0).f_clamp(op.lo.get(), op.hi.get())?]),
    |op, v| Ok(grad(v.call(ClampBackward { lo: op.lo, hi: op.hi }, &[v.g()?, v.input(0)?])?)),
    |d| smooth(d, Clamp { lo: (-0.5).into(), hi: 0.8.into() }),
)
.saves(1, 0)
.per_result(2)
.lowers(|op, l| only(clamped(l, l.at(0), op.lo, op.hi)?));

const CLAMP_BACKWARD: OpRow<ClampBackward> = OpRow::<ClampBackward>::backward("clamp_backward", same_shape, |op, l| {
    Ok(smallvec![inside(l.at(0), l.at(1), op.lo, op.hi)?])
})
.per_result(4);

/// Returns `g` where x lies between the bounds, else 0.
pub(in crate::op) fn inside(g: &Raw, x: &Raw, lo: F64Bits, hi: F64Bits) -> Result<Raw, tch::TchError> {
    g.f_where_scalarother(&x.f_ge(lo.get())?.f_logical_and_(&x.f_le(hi.get())?)?, 0.0)
}

/// Lowers x between the bounds.
pub(in crate::op) fn clamped(l: &mut Lower<'_>, x: Id, lo: F64Bits, hi: F64Bits) -> Result<Id, LowerError> {
    let x = bounded(l, x, Compare::Less, lo.get())?;
    bounded(l, x, Compare::Greater, hi.get())
}

/// Refuses a clamp whose bounds are swapped or not numbers.
pub fn check_bounds(lo: f64, hi: f64) -> Result<(), OpErrorKind> {
    if lo <= hi {
        return Ok(());
    }
    Err(OpErrorKind::Attribute { name: "lo", found: lo, expected: "at most hi" })
}
