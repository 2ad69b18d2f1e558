//! Giving an array its memory and its content, and taking the memory away: one life of an array, so that they are one file.

use crate::backend::torch::safe::renew_storage;
use crate::op::prelude::*;
use std::fmt;

attributes! {
    /// Gives the storage of its operand, a flat array, memory of unknown content.
    Allocate => ALLOCATE;
    /// Takes the memory away. Views of the array must not be read until it is there again.
    Release => RELEASE;
    /// Operands: destination (written), source of the same shape. For whoever saved the destination it holds what it held.
    Restore;
}

const ALLOCATE: OpRow<Allocate> = OpRow::backward("allocate", nothing, |_, l| renewed(l, true))
    .writes(|_, i| i == 0)
    .free()
    .traffic(Traffic::Nothing)
    .export(not_exported());

const RELEASE: OpRow<Release> = OpRow::backward("release", nothing, |_, l| renewed(l, false))
    .writes(|_, i| i == 0)
    .free()
    .traffic(Traffic::Nothing)
    .export(not_exported());

fn renewed(l: &Launch<'_>, there: bool) -> Launched {
    renew_storage(l.at(0), there)?;
    Ok(SmallVec::new())
}

impl Operation for Restore {
    const ROW: OpRow<Self> = OpRow::<Self>::backward("place", shape_restore, launch_restore)
        .writes(|_, i| i == 0)
        .free()
        .traffic(Traffic::Overwritten)
        .export(not_exported());

    // Programs have always been printed with this name.
    fn print(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Place")
    }
}

fn shape_restore(_: &Restore, ins: &[&Meta]) -> Inferred {
    if ins[0] != ins[1] {
        return Err(mismatch(&ins[0].shape, &ins[1].shape, "destination and source of one shape and kind"));
    }
    Ok(Metas::new())
}

fn launch_restore(_: &Restore, l: &Launch<'_>) -> Launched {
    // Another handle with a version counter of its own.
    l.at(0).f_data()?.f_copy_(l.at(1))?;
    Ok(SmallVec::new())
}

const fn not_exported<A>() -> Export<A> {
    Export::no("where weights lie is not part of the model", "parameters by Cx::param, wherever they lie")
}
