//! Arithmetic of two operands that broadcast.
//!
//! The four functions share shape, samples and export, so that they are one file.

use crate::op::prelude::*;
use crate::op::{Unary, UnaryBackward};
use enn_common::graph::{Binary as Plain, Op as PlainOp};
use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Binary {
    Add,
    Sub,
    Mul,
    Div,
}

type Reverse = fn(&Binary, &Vjp<'_>) -> Result<Grads, OpError>;

const fn row(name: &'static str, vjp: Reverse, samples: fn(&mut SampleRng) -> Vec<Sample>) -> OpRow<Binary> {
    OpRow::forward(name, shape, launch, vjp, samples).class(Class::Widest).lowers(lower)
}

impl Operation for Binary {
    const ROW: OpRow<Self> = row("add", vjp_add, |d| samples(d, Self::Add));
    const ROWS: &'static [OpRow<Self>] = &[
        Self::ROW,
        row("sub", vjp_add, |d| samples(d, Self::Sub)),
        row("mul", vjp_mul, |d| samples(d, Self::Mul)).saves(0b11, 0),
        row("div", vjp_div, |d| samples(d, Self::Div)).saves(0b10, 1),
    ];

    fn row_index(&self) -> usize {
        *self as usize
    }

    fn print(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Binary").field(self).finish()
    }
}

fn shape(_: &Binary, ins: &[&Meta]) -> Inferred {
    float(0, ins[0])?;
    same_kind(ins)?;
    one(ins[0].with_shape(broadcast(&ins[0].shape, &ins[1].shape)?))
}

fn launch(function: &Binary, l: &Launch<'_>) -> Launched {
    let a = l.at(0);
    let b = l.at(1);
    Ok(smallvec![match function {
        Binary::Add => a.f_add(b)?,
        Binary::Sub => a.f_sub(b)?,
        Binary::Mul => a.f_mul(b)?,
        Binary::Div => a.f_div(b)?,
    }])
}

fn vjp_add(function: &Binary, v: &Vjp<'_>) -> Result<Grads, OpError> {
    let g = v.g()?;
    let mut grads: Grads = smallvec![None, None];
    if v.needs(0) {
        grads[0] = v.fit(0, g.clone())?;
    }
    if v.needs(1) {
        // Summing before negating touches fewer elements where the operand was broadcast.
        let g = v.unbroadcast(g.clone(), &v.shape(1))?;
        let negate = *function == Binary::Sub;
        grads[1] = Some(if negate { v.call(UnaryBackward(Unary::Neg), &[&g])? } else { g });
    }
    Ok(grads)
}

fn vjp_mul(_: &Binary, v: &Vjp<'_>) -> Result<Grads, OpError> {
    let g = v.g()?;
    let mut grads: Grads = smallvec![None, None];
    for i in [0, 1u8] {
        if v.needs(i.into()) {
            let product = v.call(Binary::Mul, &[g, v.input(1 - i)?])?;
            grads[usize::from(i)] = v.fit(i.into(), product)?;
        }
    }
    Ok(grads)
}

fn vjp_div(_: &Binary, v: &Vjp<'_>) -> Result<Grads, OpError> {
    // y = a / b: da = g / b, db = −y · g / b.
    let ga = v.call(Binary::Div, &[v.g()?, v.input(1)?])?;
    let mut grads: Grads = smallvec![None, None];
    if v.needs(1) {
        let gy = v.call(Binary::Mul, &[&ga, v.output(0)?])?;
        let sum = v.unbroadcast(gy, &v.shape(1))?;
        grads[1] = Some(v.call(UnaryBackward(Unary::Neg), &[&sum])?);
    }
    if v.needs(0) {
        grads[0] = v.fit(0, ga)?;
    }
    Ok(grads)
}

fn samples(d: &mut SampleRng, function: Binary) -> Vec<Sample> {
    let (a, b) = d.sizes();
    let c = d.size(2, 3);
    let right = |shape: &[i64]| if function == Binary::Div { between(shape, 0.5, 2.0) } else { normal(shape) };
    vec![
        sample(function, [normal(&[a, b]), right(&[a, b])]),
        sample(function, [normal(&[a, b, c]), right(&[b, 1])]),
        sample(function, [normal(&[b]), right(&[a, 1, b])]),
        sample(function, [normal(&[c, b]).transposed(), right(&[]).strided()]),
        sample(function, [normal(&[]), right(&[a, b]).transposed()]),
        sample(function, [normal(&[a, 0]), right(&[1, 1])]),
    ]
}

/// Lowers the function. An f64 constant is added or subtracted in two parts, so that its offset does not swallow the signal.
fn lower(function: &Binary, l: &mut Lower<'_>) -> Lowered {
    let a = l.at(0);
    let b = l.at(1);
    only(match (function, l.rests.get(&b).copied()) {
        (Binary::Sub, Some(rest)) => {
            // Two constants in a row a runtime may add to one, as TensorFlow does, and the rest is lost: it must not look like one.
            let centred = l.binary(Plain::Sub, a, b)?;
            let is_number = l.finite(a)?;
            let zero = l.number(0.0);
            let rest = l.emit(PlainOp::Where, &[is_number, rest, zero])?;
            l.binary(Plain::Sub, centred, rest)?
        }
        (Binary::Add, Some(rest)) => {
            let sum = l.add(a, rest)?;
            l.add(sum, b)?
        }
        (Binary::Add, None) => l.add(a, b)?,
        (Binary::Sub, None) => l.binary(Plain::Sub, a, b)?,
        (Binary::Mul, _) => l.mul(a, b)?,
        (Binary::Div, _) => l.binary(Plain::Div, a, b)?,
    })
}
