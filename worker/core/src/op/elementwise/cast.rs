//! Another element kind.

use crate::op::elementwise::smooth;
use crate::op::prelude::*;
use enn_common::graph::DType;

attributes! {
    Cast { to: Kind } => CAST;
}

const CAST: OpRow<Cast> = OpRow::<Cast>::forward(
    "cast",
    |op, ins| one(Meta { kind: op.to, ..ins[0].clone() }),
    |op, l| Ok(smallvec![l.at(0).f_to_kind(op.to)?]),
    |_, v| Ok(grad(v.call(Cast { to: v.meta(0).kind }, &[v.g()?])?)),
    |d| smooth(d, Cast { to: Kind::Double }),
)
.free()
.lowers(lower);

fn lower(op: &Cast, l: &mut Lower<'_>) -> Lowered {
    let x = l.at(0);
    match (op.to, l.graph.value(x).dtype) {
        // What the worker computes in f64 stays f32: `Lower::rests` keeps what that would lose.
        (Kind::Float | Kind::Double, _) => only(l.cast(x, DType::F32)?),
        (Kind::Int64, _) => only(l.cast(x, DType::I64)?),
        (Kind::Bool, DType::Bool) => only(x),
        _ => Err(LowerError::no(
            "a cast to another element type than f32, f64 or i64",
            "functional::cast to f32: half precision is asked for where a model is exported, with --precision",
        )),
    }
}
