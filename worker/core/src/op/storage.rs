//! Memory of arrays that is there only while a step uses them.

use super::Op;
use super::infer::{Inferred, Metas, mismatch};
use super::row::{Export, Launch, Launched, OpRow, free};
use super::value::Meta;
use crate::backend::torch::safe::renew_storage;
use smallvec::SmallVec;

const NOT_EXPORTED: Export =
    Export::no("where weights lie is not part of the model", "parameters by Cx::param, wherever they lie");

/// Allocate, Release, Place.
///
/// Allocate gives the storage of its operand, a flat array, memory of unknown content; Release takes it away, and what views
/// the array must not be read until it is there again. Place's operands: destination (written), source of the same shape; for
/// whoever saved the destination it holds what it held.
pub(super) static ROWS: [OpRow; 3] = [
    OpRow::backward("allocate", |_, _| Ok(Metas::new()), |_, l| renewed(l, true)).flops(free).export(NOT_EXPORTED),
    OpRow::backward("release", |_, _| Ok(Metas::new()), |_, l| renewed(l, false)).flops(free).export(NOT_EXPORTED),
    OpRow::backward("place", shape_place, launch_place).flops(free).export(NOT_EXPORTED),
];

/// The row of an operation of this family.
pub(super) fn row(op: &Op) -> &'static OpRow {
    match op {
        Op::Allocate => &ROWS[0],
        Op::Release => &ROWS[1],
        Op::Place => &ROWS[2],
        _ => unreachable!("an operation of another family"),
    }
}

fn renewed(l: &Launch<'_>, there: bool) -> Launched {
    renew_storage(l.at(0), there)?;
    Ok(SmallVec::new())
}

fn shape_place(_: &Op, ins: &[&Meta]) -> Inferred {
    if ins[0] != ins[1] {
        return Err(mismatch(&ins[0].shape, &ins[1].shape, "destination and source of one shape and kind"));
    }
    Ok(Metas::new())
}

fn launch_place(_: &Op, l: &Launch<'_>) -> Launched {
    // Another handle with a version counter of its own.
    l.at(0).f_data()?.f_copy_(l.at(1))?;
    Ok(SmallVec::new())
}
