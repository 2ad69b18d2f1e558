//! An axis backwards.

use super::Op;
use super::infer::{Inferred, axis, one};
use super::lower::{Lower, Lowered, only};
use super::row::{Launch, Launched, OpRow, free};
use super::sample::{Draw, Sample, normal, sample};
use super::value::Meta;
use super::vjp::{Grads, Vjp, grad};
use crate::error::OpError;
use smallvec::smallvec;

pub static ROWS: [OpRow; 1] = [OpRow::forward("flip", shape, launch, vjp, samples).flops(free).lowers(lower)];

fn at(op: &Op) -> i64 {
    let Op::Flip { axis } = op else { unreachable!("row of another operation") };
    *axis
}

fn shape(op: &Op, ins: &[&Meta]) -> Inferred {
    axis(at(op), ins[0].rank())?;
    one(ins[0].clone())
}

fn launch(op: &Op, l: &Launch<'_>) -> Launched {
    Ok(smallvec![l.at(0).f_flip(at(op))?])
}

fn vjp(v: &Vjp<'_>) -> Result<Grads, OpError> {
    Ok(grad(v.call(v.op().clone(), &[v.g()?])?))
}

fn samples(d: &mut Draw) -> Vec<Sample> {
    let a = d.size(2, 4);
    let b = d.size(5, 7);
    vec![
        sample(Op::Flip { axis: 1 }, [normal(&[a, b, 3])]),
        sample(Op::Flip { axis: -1 }, [normal(&[a, b]).strided()]),
        sample(Op::Flip { axis: 0 }, [normal(&[0, b])]),
    ]
}

fn lower(op: &Op, l: &mut Lower<'_>) -> Lowered {
    let x = l.at(0);
    only(l.flipped(x, l.axis(x, at(op)))?)
}
