//! The product and the sum with a number.

use crate::op::elementwise::smooth;
use crate::op::prelude::*;

attributes! {
    Scale { by: F64Bits } => SCALE;
    AddScalar { by: F64Bits } => ADD_SCALAR;
}

const SCALE: OpRow<Scale> = OpRow::<Scale>::forward(
    "scale",
    same_shape,
    |op, l| Ok(smallvec![l.at(0).f_mul_scalar(op.by.get())?]),
    |op, v| Ok(grad(v.call(op.clone(), &[v.g()?])?)),
    |d| smooth(d, Scale { by: 0.75.into() }),
)
.lowers(|op, l| only(l.scaled(l.at(0), op.by.get())?));

const ADD_SCALAR: OpRow<AddScalar> = OpRow::<AddScalar>::forward(
    "add_scalar",
    same_shape,
    |op, l| Ok(smallvec![l.at(0).f_add_scalar(op.by.get())?]),
    |_, v| Ok(grad(v.g()?.clone())),
    |d| smooth(d, AddScalar { by: 0.75.into() }),
)
.lowers(|op, l| {
    let by = l.number(op.by.get());
    only(l.add(l.at(0), by)?)
});
