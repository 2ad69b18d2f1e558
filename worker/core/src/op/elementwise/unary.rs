//! Functions of one operand with one result of the same shape, and their reverses.
//!
//! They share everything but the function itself, so that they are one file: a table of names, costs and classes, and one match for each
//! of launch, reverse and export.

use crate::op::elementwise::{bounded, smooth};
use crate::op::prelude::*;
use enn_common::graph::{Binary, Compare, Id, Unary as Plain};
use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Unary {
    Neg,
    Exp,
    /// ln x
    Log,
    Sqrt,
    Square,
    /// |x|, gradient 0 at 0
    Abs,
    Reciprocal,
    /// max(x, 0), gradient 0 at 0
    Relu,
    /// x · sigmoid(x)
    Silu,
    /// x · Φ(x)
    Gelu,
    /// GELU by the tanh formula
    GeluTanh,
    /// 1/(1+e⁻ˣ)
    Sigmoid,
    Tanh,
    /// ln(1+eˣ), linear above 20
    Softplus,
}

/// The reverse of a function. Operands: the gradient, then the saved operand or result.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct UnaryBackward(pub Unary);

const fn row(name: &'static str, samples: fn(&mut SampleRng) -> Vec<Sample>) -> OpRow<Unary> {
    OpRow::forward(name, same_shape, launch, vjp, samples).lowers(lower)
}

impl Operation for Unary {
    const ROW: OpRow<Self> = row("neg", |d| smooth(d, Self::Neg));
    const ROWS: &'static [OpRow<Self>] = &[
        Self::ROW,
        row("exp", |d| smooth(d, Self::Exp)).saves(0, 1).class(Class::Full),
        row("log", |d| positive(d, Self::Log)).saves(1, 0).class(Class::Full),
        row("sqrt", |d| positive(d, Self::Sqrt)).saves(0, 1).class(Class::Full),
        row("square", |d| smooth(d, Self::Square)).saves(1, 0).class(Class::Full),
        row("abs", |d| kinked(d, Self::Abs)).saves(1, 0),
        row("reciprocal", |d| kinked(d, Self::Reciprocal)).saves(0, 1).class(Class::Full),
        row("relu", |d| kinked(d, Self::Relu)).saves(0, 1),
        row("silu", |d| smooth(d, Self::Silu)).saves(1, 0).per_result(4),
        row("gelu", |d| smooth(d, Self::Gelu)).saves(1, 0).per_result(5),
        row("gelu_tanh", |d| smooth(d, Self::GeluTanh)).saves(1, 0).per_result(9),
        row("sigmoid", |d| smooth(d, Self::Sigmoid)).saves(0, 1).per_result(4),
        row("tanh", |d| smooth(d, Self::Tanh)).saves(0, 1),
        row("softplus", |d| smooth(d, Self::Softplus)).saves(1, 0).per_result(3).class(Class::Full),
    ];

    fn row_index(&self) -> usize {
        *self as usize
    }

    fn print(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Unary").field(self).finish()
    }
}

const fn reverse(name: &'static str, flops: u64) -> OpRow<UnaryBackward> {
    OpRow::backward(name, same_shape, launch_backward).per_result(flops)
}

impl Operation for UnaryBackward {
    const ROW: OpRow<Self> = reverse("neg_backward", 1);
    const ROWS: &'static [OpRow<Self>] = &[
        Self::ROW,
        reverse("exp_backward", 1),
        reverse("log_backward", 1),
        reverse("sqrt_backward", 2),
        reverse("square_backward", 2),
        reverse("abs_backward", 2),
        reverse("reciprocal_backward", 3),
        reverse("relu_backward", 2),
        reverse("silu_backward", 9),
        reverse("gelu_backward", 11),
        reverse("gelu_tanh_backward", 18),
        reverse("sigmoid_backward", 3),
        reverse("tanh_backward", 3),
        reverse("softplus_backward", 5),
    ];

    fn row_index(&self) -> usize {
        self.0 as usize
    }
}

fn launch(function: &Unary, l: &Launch<'_>) -> Launched {
    let x = l.at(0);
    Ok(smallvec![match function {
        Unary::Neg => x.f_neg()?,
        Unary::Exp => x.f_exp()?,
        Unary::Log => x.f_log()?,
        Unary::Sqrt => x.f_sqrt()?,
        Unary::Square => x.f_mul(x)?,
        Unary::Abs => x.f_abs()?,
        Unary::Reciprocal => x.f_reciprocal()?,
        Unary::Relu => x.f_relu()?,
        Unary::Silu => x.f_silu()?,
        Unary::Gelu => x.f_gelu("none")?,
        Unary::GeluTanh => x.f_gelu("tanh")?,
        Unary::Sigmoid => x.f_sigmoid()?,
        Unary::Tanh => x.f_tanh()?,
        Unary::Softplus => x.f_softplus()?,
    }])
}

fn launch_backward(reverse: &UnaryBackward, l: &Launch<'_>) -> Launched {
    let g = l.at(0);
    let s = l.at(l.ins.len() - 1);
    Ok(smallvec![match reverse.0 {
        Unary::Neg => g.f_neg()?,
        Unary::Exp => g.f_mul(s)?,
        Unary::Log => g.f_div(s)?,
        Unary::Sqrt => g.f_div(s)?.f_mul_scalar_(0.5)?,
        Unary::Square => g.f_mul(s)?.f_mul_scalar_(2.0)?,
        Unary::Abs => g.f_mul(&s.f_sign()?)?,
        Unary::Reciprocal => g.f_mul(s)?.f_mul_(s)?.f_neg_()?,
        Unary::Relu => s.f_threshold_backward(g, 0.0)?,
        Unary::Silu => s.f_silu_backward(g)?,
        Unary::Gelu => s.f_gelu_backward(g, "none")?,
        Unary::GeluTanh => s.f_gelu_backward(g, "tanh")?,
        Unary::Sigmoid => Raw::f_sigmoid_backward(g, s)?,
        Unary::Tanh => Raw::f_tanh_backward(g, s)?,
        Unary::Softplus => s.f_softplus_backward(g, 1.0, 20.0)?,
    }])
}

fn vjp(function: &Unary, v: &Vjp<'_>) -> Result<Grads, OpError> {
    let g = v.g()?;
    let reverse = UnaryBackward(*function);
    let save = Unary::ROWS[function.row_index()].save;
    Ok(grad(match (save.ins, save.outs) {
        (0, 0) => v.call(reverse, &[g])?,
        (0, _) => v.call(reverse, &[g, v.output(0)?])?,
        _ => v.call(reverse, &[g, v.input(0)?])?,
    }))
}

fn positive(d: &mut SampleRng, function: Unary) -> Vec<Sample> {
    let (a, b) = d.sizes();
    vec![
        sample(function, [between(&[a, b], 0.3, 2.0)]),
        sample(function, [between(&[a, b], 0.3, 2.0).transposed()]),
        sample(function, [between(&[0, b], 0.3, 2.0)]),
    ]
}

/// Example calls of a function with a kink or a pole at 0: numbers of either sign.
fn kinked(d: &mut SampleRng, function: Unary) -> Vec<Sample> {
    let mut samples = positive(d, function);
    samples.push(sample(function, [between(&[6, 3], -2.0, -0.3).strided()]));
    samples
}

fn lower(function: &Unary, l: &mut Lower<'_>) -> Lowered {
    let x = l.at(0);
    only(match function {
        Unary::Neg => l.unary(Plain::Neg, x)?,
        Unary::Exp => l.unary(Plain::Exp, x)?,
        Unary::Log => l.unary(Plain::Log, x)?,
        Unary::Sqrt => l.unary(Plain::Sqrt, x)?,
        Unary::Square => l.mul(x, x)?,
        Unary::Abs => l.unary(Plain::Abs, x)?,
        Unary::Reciprocal => {
            let one = l.number(1.0);
            l.binary(Binary::Div, one, x)?
        }
        Unary::Relu => bounded(l, x, Compare::Less, 0.0)?,
        Unary::Silu => l.silu(x)?,
        Unary::Gelu => l.unary(Plain::Gelu, x)?,
        Unary::GeluTanh => l.unary(Plain::GeluTanh, x)?,
        Unary::Sigmoid => l.unary(Plain::Sigmoid, x)?,
        Unary::Tanh => l.unary(Plain::Tanh, x)?,
        Unary::Softplus => lower_softplus(l)?,
    })
}

/// Lowers max(x, 0) + ln(1 + e^−|x|), which does not overflow.
fn lower_softplus(l: &mut Lower<'_>) -> Result<Id, LowerError> {
    let x = l.at(0);
    let zero = l.number(0.0);
    let one = l.number(1.0);
    let size = l.unary(Plain::Abs, x)?;
    let below = l.unary(Plain::Neg, size)?;
    let below = l.unary(Plain::Exp, below)?;
    let below = l.add(below, one)?;
    let rest = l.unary(Plain::Log, below)?;
    let above = l.binary(Binary::Max, x, zero)?;
    l.add(above, rest)
}
