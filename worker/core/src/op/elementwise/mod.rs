//! Functions of each element, of one operand or of several that broadcast.

pub mod binary;
pub mod cast;
pub mod choice;
pub mod clamp;
pub(super) mod gate;
pub mod logic;
pub mod scalar;
pub mod silu_mul;
pub mod swiglu;
pub mod unary;

use super::prelude::*;
use enn_common::graph::{Compare, Id, Op as Plain};

/// Example calls of a function that is smooth everywhere.
pub(super) fn smooth(d: &mut SampleRng, op: impl Into<super::Op>) -> Vec<Sample> {
    let op = op.into();
    let (a, b) = d.sizes();
    let c = d.size(8, 9);
    vec![
        sample(op.clone(), [normal(&[a, b, c])]),
        sample(op.clone(), [normal(&[c, a]).transposed()]),
        sample(op.clone(), [normal(&[b, c]).strided()]),
        sample(op.clone(), [normal(&[])]),
        sample(op, [normal(&[a, 0, c])]),
    ]
}

/// Lowers x, or the bound beyond it. NaN stays NaN: of it and a bound some runtimes give the bound, whichever is asked for.
pub(super) fn bounded(l: &mut Lower<'_>, x: Id, beyond: Compare, bound: f64) -> Result<Id, LowerError> {
    let bound = l.number(bound);
    let is_beyond = l.emit(Plain::Compare(beyond), &[x, bound])?;
    l.emit(Plain::Where, &[is_beyond, bound, x])
}
