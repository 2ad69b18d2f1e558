//! Truth values: tests of numbers, their combination, and the choice of columns. What the model does to its inputs before
//! the first weight.

use super::Op;
use super::infer::{Inferred, axis, boolean, broadcast, float, one, wrong};
use super::lower::{Lower, Lowered, only};
use super::row::{Launch, Launched, OpRow, free};
use super::sample::{Draw, Sample, bools, ids, normal, sample};
use super::value::Meta;
use enn_common::graph::{Compare, Id, Op as Plain};
use smallvec::smallvec;
use tch::Kind;

/// Test, And, Not, IndexSelect. None has a gradient.
pub static ROWS: [OpRow; 4] = [
    OpRow::backward("test", shape_test, launch).samples(samples_test).lowers(lower),
    OpRow::backward("and", shape_and, launch).samples(samples_and).flops(free).lowers(lower),
    OpRow::backward("not", shape_not, launch).samples(samples_not).flops(free).lowers(lower),
    OpRow::backward("index_select", shape_index_select, launch).samples(samples_index_select).flops(free).lowers(lower),
];

/// The row of an operation of this family.
pub(super) fn row(op: &Op) -> &'static OpRow {
    match op {
        Op::Test(_) => &ROWS[0],
        Op::And => &ROWS[1],
        Op::Not => &ROWS[2],
        Op::IndexSelect { .. } => &ROWS[3],
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

fn shape_index_select(op: &Op, ins: &[&Meta]) -> Inferred {
    let Op::IndexSelect { axis: at } = op else { unreachable!("row of another operation") };
    let at = axis(*at, ins[0].rank())?;
    if ins[1].kind != Kind::Int64 || ins[1].rank() != 1 {
        return Err(wrong(1, ins[1], "a list of 64-bit positions"));
    }
    let mut shape = ins[0].shape.clone();
    shape[at] = ins[1].shape[0];
    one(ins[0].with_shape(shape))
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
        Op::IndexSelect { axis } => x.f_index_select(*axis, l.at(1))?,
        _ => unreachable!("row of another operation"),
    }])
}

fn samples_test(d: &mut Draw) -> Vec<Sample> {
    use super::attr::Test;
    let (a, b) = (d.size(2, 4), d.size(5, 7));
    vec![
        sample(Op::Test(Test::Finite), [normal(&[a, b, 3])]),
        sample(Op::Test(Test::AtLeast(0.25.into())), [normal(&[b, a]).transposed()]),
        sample(Op::Test(Test::Below((-0.25).into())), [normal(&[a, b]).strided()]),
        sample(Op::Test(Test::Below(0.5.into())), [normal(&[a, 0])]),
    ]
}

fn samples_and(d: &mut Draw) -> Vec<Sample> {
    let (a, b) = (d.size(2, 4), d.size(5, 7));
    vec![
        sample(Op::And, [bools(&[a, b]), bools(&[a, b])]),
        sample(Op::And, [bools(&[b, a]).transposed(), bools(&[3, 1, a]).strided()]),
        sample(Op::And, [bools(&[a, 1]), bools(&[0])]),
    ]
}

fn samples_not(d: &mut Draw) -> Vec<Sample> {
    let (a, b) = (d.size(2, 4), d.size(5, 7));
    vec![
        sample(Op::Not, [bools(&[a, b, 3])]),
        sample(Op::Not, [bools(&[b, a]).transposed()]),
        sample(Op::Not, [bools(&[0, b])]),
    ]
}

fn samples_index_select(d: &mut Draw) -> Vec<Sample> {
    let (a, b) = (d.size(2, 4), d.size(5, 7));
    vec![
        sample(Op::IndexSelect { axis: 1 }, [normal(&[a, b, 3]), ids(&[9], b)]),
        sample(Op::IndexSelect { axis: -1 }, [normal(&[b, a]).transposed(), ids(&[4], a).strided()]),
        sample(Op::IndexSelect { axis: 0 }, [normal(&[a, b]), ids(&[0], a)]),
        sample(Op::IndexSelect { axis: 0 }, [normal(&[a, 0]), ids(&[5], a)]),
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
        Op::IndexSelect { axis } => {
            let axis = l.axis(x, *axis);
            l.emit(Plain::Gather { axis }, &[x, l.at(1)])?
        }
        _ => unreachable!("row of another operation"),
    })
}
