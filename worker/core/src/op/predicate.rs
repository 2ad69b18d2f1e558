//! Truth values: tests of numbers, and their combination. What the model does to its inputs before the first weight.

use super::Op;
use super::infer::{Inferred, boolean, broadcast, float, one};
use super::lower::{Lower, Lowered, only};
use super::row::{Launch, Launched, OpRow, free};
use super::sample::{Draw, Sample, bools, normal, sample};
use super::value::Meta;
use enn_common::graph::{Compare, Id, Op as Plain};
use smallvec::smallvec;
use tch::Kind;

/// Test, And, Not. None has a gradient.
pub static ROWS: [OpRow; 3] = [
    OpRow::backward("test", shape_test, launch).samples(samples_test).lowers(lower),
    OpRow::backward("and", shape_and, launch).samples(samples_and).flops(free).lowers(lower),
    OpRow::backward("not", shape_not, launch).samples(samples_not).flops(free).lowers(lower),
];

/// The row of an operation of this family.
pub(super) fn row(op: &Op) -> &'static OpRow {
    match op {
        Op::Test(_) => &ROWS[0],
        Op::And => &ROWS[1],
        Op::Not => &ROWS[2],
        _ => unreachable!("an operation of another family"),
    }
}

fn shape_test(_: &Op, ins: &[&Meta]) -> Inferred {
    float(0, ins[0])?;
    one(Meta { kind: Kind::Bool, ..ins[0].clone() })
}

fn shape_and(_: &Op, ins: &[&Meta]) -> Inferred {
    boolean(0, ins[0])?;
    boolean(1, ins[1])?;
    one(ins[0].with_shape(broadcast(&ins[0].shape, &ins[1].shape)?))
}

fn shape_not(_: &Op, ins: &[&Meta]) -> Inferred {
    boolean(0, ins[0])?;
    one(ins[0].clone())
}

fn launch(op: &Op, l: &Launch<'_>) -> Launched {
    use super::attr::Test;
    let x = l.at(0);
    Ok(smallvec![match op {
        Op::Test(Test::Finite) => x.f_isfinite()?,
        Op::Test(Test::AtLeast(bound)) => x.f_ge(bound.get())?,
        Op::Test(Test::Below(bound)) => x.f_lt(bound.get())?,
        Op::And => x.f_logical_and(l.at(1))?,
        Op::Not => x.f_logical_not()?,
        _ => unreachable!("row of another operation"),
    }])
}

fn samples_test(d: &mut Draw) -> Vec<Sample> {
    use super::attr::Test;
    let a = d.size(2, 4);
    let b = d.size(5, 7);
    vec![
        sample(Op::Test(Test::Finite), [normal(&[a, b, 3])]),
        sample(Op::Test(Test::AtLeast(0.25.into())), [normal(&[b, a]).transposed()]),
        sample(Op::Test(Test::Below((-0.25).into())), [normal(&[a, b]).strided()]),
        sample(Op::Test(Test::Below(0.5.into())), [normal(&[a, 0])]),
    ]
}

fn samples_and(d: &mut Draw) -> Vec<Sample> {
    let a = d.size(2, 4);
    let b = d.size(5, 7);
    vec![
        sample(Op::And, [bools(&[a, b]), bools(&[a, b])]),
        sample(Op::And, [bools(&[b, a]).transposed(), bools(&[3, 1, a]).strided()]),
        sample(Op::And, [bools(&[a, 1]), bools(&[0])]),
    ]
}

fn samples_not(d: &mut Draw) -> Vec<Sample> {
    let a = d.size(2, 4);
    let b = d.size(5, 7);
    vec![
        sample(Op::Not, [bools(&[a, b, 3])]),
        sample(Op::Not, [bools(&[b, a]).transposed()]),
        sample(Op::Not, [bools(&[0, b])]),
    ]
}

fn lower(op: &Op, l: &mut Lower<'_>) -> Lowered {
    use super::attr::Test;
    let x = l.at(0);
    let mut against = |f: Compare, x: Id, bound: f64| {
        let bound = l.number(bound);
        l.emit(Plain::Compare(f), &[x, bound])
    };
    only(match op {
        Op::Test(Test::AtLeast(bound)) => against(Compare::GreaterEqual, x, bound.get())?,
        Op::Test(Test::Below(bound)) => against(Compare::Less, x, bound.get())?,
        Op::Test(Test::Finite) => l.finite(x)?,
        Op::And => l.emit(Plain::And, &[x, l.at(1)])?,
        Op::Not => l.emit(Plain::Not, &[x])?,
        _ => unreachable!("row of another operation"),
    })
}
