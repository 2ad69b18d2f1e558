//! One-operand functions, scalar arithmetic, clamp and cast.

use super::Op;
use super::attr::Unary;
use super::infer::{Inferred, float, one};
use super::lower::{Lower, LowerError, Lowered, only};
use super::row::{Launch, Launched, OpRow, free, per_result};
use super::sample::{Draw, Sample, between, normal, sample};
use super::value::Meta;
use super::vjp::{Grads, Vjp, grad};
use crate::error::{OpError, OpErrorKind};
use enn_common::graph::{self, Binary, Compare, DType};
use smallvec::smallvec;
use tch::Kind;

const fn unary(name: &'static str, saves_in: bool, samples: fn(&mut Draw) -> Vec<Sample>) -> OpRow {
    OpRow::forward(name, same_shape, launch_unary, vjp_unary, samples).saves(saves_in as u16, !saves_in as u16)
}

/// Rows of [`Unary`], in its order.
pub static UNARY: [OpRow; 14] = [
    OpRow::forward("neg", same_shape, launch_unary, vjp_unary, |d| smooth(d, Unary::Neg)).lowers(lower_unary),
    unary("exp", false, |d| smooth(d, Unary::Exp)).lowers(lower_unary),
    unary("log", true, |d| positive(d, Unary::Log)).lowers(lower_unary),
    unary("sqrt", false, |d| positive(d, Unary::Sqrt)).lowers(lower_unary),
    unary("square", true, |d| smooth(d, Unary::Square)).lowers(lower_unary),
    unary("abs", true, |d| positive(d, Unary::Abs)).lowers(lower_unary),
    unary("reciprocal", false, |d| positive(d, Unary::Reciprocal)).lowers(lower_unary),
    unary("relu", false, |d| positive(d, Unary::Relu)).lowers(lower_unary),
    unary("silu", true, |d| smooth(d, Unary::Silu)).flops(per_result::<4>).lowers(lower_unary),
    unary("gelu", true, |d| smooth(d, Unary::Gelu)).flops(per_result::<5>).lowers(lower_unary),
    unary("gelu_tanh", true, |d| smooth(d, Unary::GeluTanh)).flops(per_result::<9>).lowers(lower_unary),
    unary("sigmoid", false, |d| smooth(d, Unary::Sigmoid)).flops(per_result::<4>).lowers(lower_unary),
    unary("tanh", false, |d| smooth(d, Unary::Tanh)).lowers(lower_unary),
    unary("softplus", true, |d| smooth(d, Unary::Softplus)).flops(per_result::<3>).lowers(lower_unary),
];

const fn unary_backward(name: &'static str) -> OpRow {
    OpRow::backward(name, same_shape, launch_unary_backward)
}

/// Rows of the reverse of [`Unary`], in its order. Operands: gradient, saved operand or result.
pub static UNARY_BACKWARD: [OpRow; 14] = [
    unary_backward("neg_backward"),
    unary_backward("exp_backward"),
    unary_backward("log_backward"),
    unary_backward("sqrt_backward").flops(per_result::<2>),
    unary_backward("square_backward").flops(per_result::<2>),
    unary_backward("abs_backward").flops(per_result::<2>),
    unary_backward("reciprocal_backward").flops(per_result::<3>),
    unary_backward("relu_backward").flops(per_result::<2>),
    unary_backward("silu_backward").flops(per_result::<9>),
    unary_backward("gelu_backward").flops(per_result::<11>),
    unary_backward("gelu_tanh_backward").flops(per_result::<18>),
    unary_backward("sigmoid_backward").flops(per_result::<3>),
    unary_backward("tanh_backward").flops(per_result::<3>),
    unary_backward("softplus_backward").flops(per_result::<5>),
];

/// Scale, AddScalar, Clamp, ClampBackward, Cast.
pub static ROWS: [OpRow; 5] = [
    OpRow::forward("scale", same_shape, launch_scale, vjp_scale, |d| smooth_op(d, Op::Scale { by: 0.75.into() }))
        .lowers(lower_scalar),
    OpRow::forward(
        "add_scalar",
        same_shape,
        launch_scale,
        |v| Ok(grad(v.g()?.clone())),
        |d| smooth_op(d, Op::AddScalar { by: 0.75.into() }),
    )
    .lowers(lower_scalar),
    OpRow::forward("clamp", same_shape, launch_clamp, vjp_clamp, |d| {
        smooth_op(d, Op::Clamp { lo: (-0.5).into(), hi: 0.8.into() })
    })
    .saves(1, 0)
    .flops(per_result::<2>)
    .lowers(lower_scalar),
    OpRow::backward("clamp_backward", same_shape, launch_clamp).flops(per_result::<4>),
    OpRow::forward("cast", shape_cast, launch_cast, vjp_cast, |d| smooth_op(d, Op::Cast { to: Kind::Double }))
        .flops(free)
        .lowers(lower_cast),
];

fn same_shape(_: &Op, ins: &[&Meta]) -> Inferred {
    float(0, ins[0])?;
    one(ins[0].clone())
}

fn shape_cast(op: &Op, ins: &[&Meta]) -> Inferred {
    let Op::Cast { to } = op else { return same_shape(op, ins) };
    one(Meta { kind: *to, ..ins[0].clone() })
}

fn launch_unary(op: &Op, l: &Launch<'_>) -> Launched {
    let x = l.at(0);
    let Op::Unary(unary) = op else { return Ok(smallvec![x.shallow_clone()]) };
    Ok(smallvec![match unary {
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

fn launch_unary_backward(op: &Op, l: &Launch<'_>) -> Launched {
    let g = l.at(0);
    let s = l.at(l.ins.len() - 1);
    let Op::UnaryBackward(unary) = op else { return Ok(smallvec![g.shallow_clone()]) };
    Ok(smallvec![match unary {
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
        Unary::Sigmoid => tch::Tensor::f_sigmoid_backward(g, s)?,
        Unary::Tanh => tch::Tensor::f_tanh_backward(g, s)?,
        Unary::Softplus => s.f_softplus_backward(g, 1.0, 20.0)?,
    }])
}

fn vjp_unary(v: &Vjp<'_>) -> Result<Grads, OpError> {
    let g = v.g()?;
    let Op::Unary(unary) = *v.op() else { return Ok(grad(g.clone())) };
    let op = Op::UnaryBackward(unary);
    if unary == Unary::Neg {
        return Ok(grad(v.call(op, &[g])?));
    }
    let saved = if UNARY[unary as usize].save.ins == 1 { v.input(0)? } else { v.output(0)? };
    Ok(grad(v.call(op, &[g, saved])?))
}

fn launch_scale(op: &Op, l: &Launch<'_>) -> Launched {
    Ok(smallvec![match op {
        Op::Scale { by } => l.at(0).f_mul_scalar(by.get())?,
        Op::AddScalar { by } => l.at(0).f_add_scalar(by.get())?,
        _ => l.at(0).shallow_clone(),
    }])
}

fn vjp_scale(v: &Vjp<'_>) -> Result<Grads, OpError> {
    Ok(grad(v.call(v.op().clone(), &[v.g()?])?))
}

fn launch_clamp(op: &Op, l: &Launch<'_>) -> Launched {
    Ok(smallvec![match op {
        Op::Clamp { lo, hi } => l.at(0).f_clamp(lo.get(), hi.get())?,
        Op::ClampBackward { lo, hi } => {
            inside(l.at(0), l.at(1), (lo.get(), hi.get()))?
        }
        _ => l.at(0).shallow_clone(),
    }])
}

/// `g` where x lies between the bounds, else 0.
pub(super) fn inside(g: &tch::Tensor, x: &tch::Tensor, (lo, hi): (f64, f64)) -> Result<tch::Tensor, tch::TchError> {
    g.f_where_scalarother(&x.f_ge(lo)?.f_logical_and_(&x.f_le(hi)?)?, 0.0)
}

fn vjp_clamp(v: &Vjp<'_>) -> Result<Grads, OpError> {
    let Op::Clamp { lo, hi } = *v.op() else { return Ok(grad(v.g()?.clone())) };
    Ok(grad(v.call(Op::ClampBackward { lo, hi }, &[v.g()?, v.input(0)?])?))
}

fn launch_cast(op: &Op, l: &Launch<'_>) -> Launched {
    let Op::Cast { to } = op else { return Ok(smallvec![l.at(0).shallow_clone()]) };
    Ok(smallvec![l.at(0).f_to_kind(*to)?])
}

fn vjp_cast(v: &Vjp<'_>) -> Result<Grads, OpError> {
    Ok(grad(v.call(Op::Cast { to: v.meta(0).kind }, &[v.g()?])?))
}

/// Refuses a clamp whose bounds are swapped or not numbers.
pub fn check_bounds(lo: f64, hi: f64) -> Result<(), OpErrorKind> {
    if lo <= hi {
        return Ok(());
    }
    Err(OpErrorKind::Attribute { name: "lo", found: lo, expected: "at most hi" })
}

fn smooth_op(d: &mut Draw, op: Op) -> Vec<Sample> {
    let a = d.size(2, 4);
    let b = d.size(5, 7);
    let c = d.size(8, 9);
    vec![
        sample(op.clone(), [normal(&[a, b, c])]),
        sample(op.clone(), [normal(&[c, a]).transposed()]),
        sample(op.clone(), [normal(&[b, c]).strided()]),
        sample(op.clone(), [normal(&[])]),
        sample(op, [normal(&[a, 0, c])]),
    ]
}

fn smooth(d: &mut Draw, unary: Unary) -> Vec<Sample> {
    smooth_op(d, Op::Unary(unary))
}

fn positive(d: &mut Draw, unary: Unary) -> Vec<Sample> {
    let a = d.size(2, 4);
    let b = d.size(5, 7);
    let op = Op::Unary(unary);
    let mut samples = vec![
        sample(op.clone(), [between(&[a, b], 0.3, 2.0)]),
        sample(op.clone(), [between(&[a, b], 0.3, 2.0).transposed()]),
        sample(op.clone(), [between(&[0, b], 0.3, 2.0)]),
    ];
    if matches!(unary, Unary::Abs | Unary::Relu | Unary::Reciprocal) {
        samples.push(sample(op, [between(&[b, a], -2.0, -0.3).strided()]));
    }
    samples
}

fn lower_unary(op: &Op, l: &mut Lower<'_>) -> Lowered {
    use graph::Unary as Plain;
    let Op::Unary(unary) = op else { unreachable!("row of another operation") };
    let x = l.at(0);
    only(match unary {
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

/// x, or the bound beyond it. What is no number stays so: of it and a bound some runtimes give the bound, whichever is asked for.
fn bounded(l: &mut Lower<'_>, x: graph::Id, beyond: Compare, bound: f64) -> Result<graph::Id, LowerError> {
    let bound = l.number(bound);
    let is_beyond = l.emit(graph::Op::Compare(beyond), &[x, bound])?;
    l.emit(graph::Op::Where, &[is_beyond, bound, x])
}

/// max(x, 0) + ln(1 + e^−|x|): nothing overflows.
fn lower_softplus(l: &mut Lower<'_>) -> Result<graph::Id, LowerError> {
    use graph::Unary as Plain;
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

fn lower_scalar(op: &Op, l: &mut Lower<'_>) -> Lowered {
    let x = l.at(0);
    only(match op {
        Op::Scale { by } => l.scaled(x, by.get())?,
        Op::AddScalar { by } => {
            let by = l.number(by.get());
            l.add(x, by)?
        }
        Op::Clamp { lo, hi } => clamped(l, x, (lo.get(), hi.get()))?,
        _ => unreachable!("row of another operation"),
    })
}

/// x between the bounds.
pub(super) fn clamped(l: &mut Lower<'_>, x: graph::Id, (lo, hi): (f64, f64)) -> Result<graph::Id, LowerError> {
    let x = bounded(l, x, Compare::Less, lo)?;
    bounded(l, x, Compare::Greater, hi)
}

fn lower_cast(op: &Op, l: &mut Lower<'_>) -> Lowered {
    let Op::Cast { to } = op else { unreachable!("row of another operation") };
    let x = l.at(0);
    let from = l.graph.value(l.at(0)).dtype;
    match (to, from) {
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
