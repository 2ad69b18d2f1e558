//! Products and sums that go into the storage of a gradient.

use crate::backend::torch::safe::{Arg, AtenOp, kind_code};
use crate::op::attr::GradDest;
use crate::op::prelude::*;

static MM_INTO: AtenOp = AtenOp::new(c"aten::mm", c"dtype_out");
static ADDMM_INTO: AtenOp = AtenOp::new(c"aten::addmm", c"dtype_out");

/// Writes a b to `to`, or adds it, rounded once, to the kind of `to`: that of a and b, or on CUDA f32 for 16-bit ones.
pub(super) fn product_into(to: &Raw, a: &Raw, b: &Raw, add: bool) -> Result<(), OpErrorKind> {
    let a_ = Arg::Tensor(a);
    let b_ = Arg::Tensor(b);
    let kind = Arg::Int(kind_code(to.kind()));
    let to_ = Arg::Tensor(to);
    match (add, to.kind() == a.kind()) {
        (false, true) => drop(a.f_mm_out(to, b)?),
        (true, true) => drop(to.f_addmm_out(to, a, b)?),
        (false, false) => drop(MM_INTO.call(&[a_, b_, kind, to_])?),
        (true, false) => drop(ADDMM_INTO.call(&[to_, a_, b_, kind, Arg::Real(1.0), Arg::Real(1.0), to_])?),
    }
    Ok(())
}

/// Writes a sum to storage, or adds it.
pub(super) fn put(storage: &Raw, to: GradDest, sum: &Raw) -> Result<(), OpErrorKind> {
    let mut storage = storage.shallow_clone();
    if to == GradDest::Write {
        storage.f_copy_(sum)?
    } else {
        drop(storage.f_add_(sum)?)
    }
    Ok(())
}
