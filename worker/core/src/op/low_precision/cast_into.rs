//! A copy into an array of another kind: it refreshes the low-precision copies of weights.

use crate::op::prelude::*;

attributes! {
    /// Operands: destination (written), source of the same shape.
    CastInto => CAST_INTO;
}

const CAST_INTO: OpRow<CastInto> =
    OpRow::backward("cast_into", shape, launch).writes(|_, i| i == 0).free().traffic(Traffic::Overwritten).export(
        Export::no("the weights' low-precision copies are not part of the model", "the weight itself, by Cx::param"),
    );

fn shape(_: &CastInto, ins: &[&Meta]) -> Inferred {
    float(0, ins[0])?;
    float(1, ins[1])?;
    if ins[0].shape != ins[1].shape {
        return Err(mismatch(&ins[0].shape, &ins[1].shape, "destination and source of one shape"));
    }
    Ok(Metas::new())
}

fn launch(_: &CastInto, l: &Launch<'_>) -> Launched {
    l.at(0).shallow_clone().f_copy_(l.at(1))?;
    Ok(SmallVec::new())
}
