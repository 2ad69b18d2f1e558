//! Truth values: tests of numbers, and their combination. The model does this to its inputs before the first weight.
//!
//! None of the three has a gradient, and each is a few lines, so that they are one file.

use crate::op::prelude::*;
use enn_common::graph::{Compare, Op as Plain};
use std::fmt;

attributes! {
    And => AND;
    Not => NOT;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Test {
    /// Neither NaN nor infinite.
    Finite,
    /// x ≥ bound
    AtLeast(F64Bits),
    /// x < bound
    Below(F64Bits),
}

impl Operation for Test {
    const ROW: OpRow<Self> = OpRow::<Self>::backward("test", shape, launch).samples(samples).lowers(lower);

    fn print(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Test").field(self).finish()
    }
}

fn shape(_: &Test, ins: &[&Meta]) -> Inferred {
    float(0, ins[0])?;
    one(Meta { kind: Kind::Bool, ..ins[0].clone() })
}

fn launch(test: &Test, l: &Launch<'_>) -> Launched {
    let x = l.at(0);
    Ok(smallvec![match test {
        Test::Finite => x.f_isfinite()?,
        Test::AtLeast(bound) => x.f_ge(bound.get())?,
        Test::Below(bound) => x.f_lt(bound.get())?,
    }])
}

fn samples(d: &mut SampleRng) -> Vec<Sample> {
    let (a, b) = d.sizes();
    vec![
        sample(Test::Finite, [normal(&[a, b, 3])]),
        sample(Test::AtLeast(0.25.into()), [normal(&[b, a]).transposed()]),
        sample(Test::Below((-0.25).into()), [normal(&[a, b]).strided()]),
        sample(Test::Below(0.5.into()), [normal(&[a, 0])]),
    ]
}

fn lower(test: &Test, l: &mut Lower<'_>) -> Lowered {
    let x = l.at(0);
    let mut against = |compare: Compare, bound: F64Bits| {
        let bound = l.number(bound.get());
        l.emit(Plain::Compare(compare), &[x, bound])
    };
    only(match test {
        Test::AtLeast(bound) => against(Compare::GreaterEqual, *bound)?,
        Test::Below(bound) => against(Compare::Less, *bound)?,
        Test::Finite => l.finite(x)?,
    })
}

const AND: OpRow<And> = OpRow::backward("and", shape_and, |_, l| Ok(smallvec![l.at(0).f_logical_and(l.at(1))?]))
    .samples(samples_and)
    .free()
    .lowers(|_, l| only(l.emit(Plain::And, l.ins)?));

fn shape_and(_: &And, ins: &[&Meta]) -> Inferred {
    boolean(0, ins[0])?;
    boolean(1, ins[1])?;
    one(ins[0].with_shape(broadcast(&ins[0].shape, &ins[1].shape)?))
}

fn samples_and(d: &mut SampleRng) -> Vec<Sample> {
    let (a, b) = d.sizes();
    vec![
        sample(And, [bools(&[a, b]), bools(&[a, b])]),
        sample(And, [bools(&[b, a]).transposed(), bools(&[3, 1, a]).strided()]),
        sample(And, [bools(&[a, 1]), bools(&[0])]),
    ]
}

const NOT: OpRow<Not> = OpRow::backward("not", shape_not, |_, l| Ok(smallvec![l.at(0).f_logical_not()?]))
    .samples(samples_not)
    .free()
    .lowers(|_, l| only(l.emit(Plain::Not, l.ins)?));

fn shape_not(_: &Not, ins: &[&Meta]) -> Inferred {
    boolean(0, ins[0])?;
    one(ins[0].clone())
}

fn samples_not(d: &mut SampleRng) -> Vec<Sample> {
    let (a, b) = d.sizes();
    vec![sample(Not, [bools(&[a, b, 3])]), sample(Not, [bools(&[b, a]).transposed()]), sample(Not, [bools(&[0, b])])]
}
