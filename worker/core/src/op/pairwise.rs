//! Two-operand arithmetic with broadcasting, selection by a mask, and the gated products of SwiGLU and retention.

use super::Op;
use super::attr::Binary;
use super::cuda;
use super::infer::{Inferred, axis, boolean, broadcast, float, mismatch, one, same_kind, wrong};
use super::lower::{Lower, Lowered, only};
use super::row::{Launch, Launched, OpRow, per_operand, per_result};
use super::rows_cpu;
use super::sample::{Draw, Sample, between, bools, normal, sample};
use super::value::{Meta, Tensor};
use super::vjp::{Grads, Vjp, grad};
use crate::error::{OpError, OpErrorKind};
use enn_common::graph;
use smallvec::smallvec;

/// Rows of [`Binary`], in its order.
pub static BINARY: [OpRow; 4] = [
    OpRow::forward("add", shape_binary, launch_binary, vjp_add, |d| arithmetic(d, Binary::Add)).lowers(lower_binary),
    OpRow::forward("sub", shape_binary, launch_binary, vjp_add, |d| arithmetic(d, Binary::Sub)).lowers(lower_binary),
    OpRow::forward("mul", shape_binary, launch_binary, vjp_mul, |d| arithmetic(d, Binary::Mul))
        .saves(0b11, 0)
        .lowers(lower_binary),
    OpRow::forward("div", shape_binary, launch_binary, vjp_div, |d| arithmetic(d, Binary::Div))
        .saves(0b10, 1)
        .lowers(lower_binary),
];

/// SiluMul, SiluMulBackward, SwiGlu, SwiGluBackward, Where, Keep.
pub static ROWS: [OpRow; 6] = [
    OpRow::forward("silu_mul", shape_equal, launch_silu_mul, vjp_silu_mul, |d| {
        let a = d.size(2, 4);
        let b = d.size(5, 7);
        vec![
            sample(Op::SiluMul, [normal(&[a, b, 3]), normal(&[a, b, 3])]),
            sample(Op::SiluMul, [normal(&[b, a]).transposed(), normal(&[b, a]).strided()]),
            sample(Op::SiluMul, [normal(&[0, a]), normal(&[0, a])]),
        ]
    })
    .saves(0b11, 0)
    .kernels(&[cuda::SILU_MUL, rows_cpu::GATE])
    .flops(per_result::<5>)
    .lowers(|_, l| {
        let gate = l.silu(l.at(0))?;
        only(l.mul(gate, l.at(1))?)
    }),
    OpRow::backward("silu_mul_backward", shape_silu_backward, launch_silu_backward)
        .kernels(&[cuda::SILU_MUL_BACKWARD, rows_cpu::GATE_BACKWARD])
        .flops(per_operand::<11>),
    OpRow::forward("swiglu", shape_swiglu, launch_swiglu, vjp_swiglu, |d| {
        let a = d.size(2, 4);
        let b = d.size(3, 5);
        vec![
            sample(Op::SwiGlu, [normal(&[a, 3, 2 * b])]),
            sample(Op::SwiGlu, [normal(&[b, 2 * a]).transposed()]),
            sample(Op::SwiGlu, [normal(&[0, 2 * a])]),
        ]
    })
    .saves(1, 0)
    .kernels(&[cuda::SWIGLU, rows_cpu::GATE])
    .flops(per_result::<5>)
    .lowers(lower_swiglu),
    OpRow::backward("swiglu_backward", |_, ins| one(ins[1].clone()), launch_swiglu_backward)
        .kernels(&[cuda::SWIGLU_BACKWARD, rows_cpu::GATE_BACKWARD])
        .flops(per_operand::<11>),
    OpRow::forward("where", shape_where, launch_where, vjp_where, |d| {
        let a = d.size(2, 4);
        let b = d.size(5, 7);
        vec![
            sample(Op::Where, [bools(&[a, b]), normal(&[a, b]), normal(&[a, b])]),
            sample(Op::Where, [bools(&[b]), normal(&[a, 1]), normal(&[1, b])]),
            sample(Op::Where, [bools(&[a, 1, b]), normal(&[3, b]).transposed(), normal(&[])]),
            sample(Op::Where, [bools(&[a, 0]), normal(&[1, 1]), normal(&[a, 0])]),
            sample(Op::Where, [bools(&[b, a]).transposed(), normal(&[0, b, a]), normal(&[b, 1]).strided()]),
        ]
    })
    .saves(1, 0)
    .lowers(|_, l| only(l.emit(graph::Op::Where, &[l.at(0), l.at(1), l.at(2)])?)),
    OpRow::backward("keep", shape_keep, launch_keep)
        .samples(|d| {
            let a = d.size(2, 4);
            let b = d.size(5, 7);
            vec![
                sample(Op::Keep { when: true }, [bools(&[a, b]), normal(&[a, b])]),
                sample(Op::Keep { when: false }, [bools(&[b]), normal(&[3, a, b]).transposed()]),
                sample(Op::Keep { when: true }, [bools(&[a, 1]).strided(), normal(&[a, b]).strided()]),
                sample(Op::Keep { when: false }, [bools(&[]), normal(&[0, b])]),
            ]
        })
        .lowers(lower_keep),
];

fn shape_binary(_: &Op, ins: &[&Meta]) -> Inferred {
    float(0, ins[0])?;
    same_kind(ins)?;
    one(ins[0].with_shape(broadcast(&ins[0].shape, &ins[1].shape)?))
}

fn launch_binary(op: &Op, l: &Launch<'_>) -> Launched {
    let a = l.at(0);
    let b = l.at(1);
    let Op::Binary(binary) = op else { unreachable!("row of another operation") };
    Ok(smallvec![match binary {
        Binary::Add => a.f_add(b)?,
        Binary::Sub => a.f_sub(b)?,
        Binary::Mul => a.f_mul(b)?,
        Binary::Div => a.f_div(b)?,
    }])
}

fn fit(v: &Vjp<'_>, i: usize, g: Tensor) -> Result<Option<Tensor>, OpError> {
    v.unbroadcast(g, &v.shape(i)).map(Some)
}

fn vjp_add(v: &Vjp<'_>) -> Result<Grads, OpError> {
    let g = v.g()?;
    let mut grads: Grads = smallvec![None, None];
    if v.needs(0) {
        grads[0] = fit(v, 0, g.clone())?;
    }
    if v.needs(1) {
        // Summing before negating touches fewer elements where the operand was broadcast.
        let g = v.unbroadcast(g.clone(), &v.shape(1))?;
        let negate = matches!(v.op(), Op::Binary(Binary::Sub));
        grads[1] = Some(if negate { v.call(Op::UnaryBackward(super::attr::Unary::Neg), &[&g])? } else { g });
    }
    Ok(grads)
}

fn vjp_mul(v: &Vjp<'_>) -> Result<Grads, OpError> {
    let g = v.g()?;
    let mut grads: Grads = smallvec![None, None];
    for i in [0, 1u8] {
        if v.needs(i.into()) {
            let product = v.call(Op::Binary(Binary::Mul), &[g, v.input(1 - i)?])?;
            grads[usize::from(i)] = fit(v, i.into(), product)?;
        }
    }
    Ok(grads)
}

fn vjp_div(v: &Vjp<'_>) -> Result<Grads, OpError> {
    // y = a / b: da = g / b, db = −y · g / b.
    let ga = v.call(Op::Binary(Binary::Div), &[v.g()?, v.input(1)?])?;
    let mut grads: Grads = smallvec![None, None];
    if v.needs(1) {
        let gy = v.call(Op::Binary(Binary::Mul), &[&ga, v.output(0)?])?;
        let sum = v.unbroadcast(gy, &v.shape(1))?;
        grads[1] = Some(v.call(Op::UnaryBackward(super::attr::Unary::Neg), &[&sum])?);
    }
    if v.needs(0) {
        grads[0] = fit(v, 0, ga)?;
    }
    Ok(grads)
}

fn shape_equal(_: &Op, ins: &[&Meta]) -> Inferred {
    float(0, ins[0])?;
    same_kind(ins)?;
    if ins[0].shape != ins[1].shape {
        return Err(mismatch(&ins[0].shape, &ins[1].shape, "equal shapes"));
    }
    one(ins[0].clone())
}

fn launch_silu_mul(_: &Op, l: &Launch<'_>) -> Launched {
    Ok(smallvec![l.at(0).f_silu()?.f_mul_(l.at(1))?])
}

fn vjp_silu_mul(v: &Vjp<'_>) -> Result<Grads, OpError> {
    let outs = v.call_all(Op::SiluMulBackward, &[v.g()?, v.input(0)?, v.input(1)?])?;
    Ok(outs.into_iter().map(Some).collect())
}

fn shape_silu_backward(_: &Op, ins: &[&Meta]) -> Inferred {
    Ok(smallvec![ins[1].clone(), ins[2].clone()])
}

fn launch_silu_backward(_: &Op, l: &Launch<'_>) -> Launched {
    let g = l.at(0);
    let a = l.at(1);
    let b = l.at(2);
    Ok(smallvec![a.f_silu_backward(&g.f_mul(b)?)?, a.f_silu()?.f_mul_(g)?])
}

fn shape_swiglu(_: &Op, ins: &[&Meta]) -> Inferred {
    float(0, ins[0])?;
    let mut shape = ins[0].shape.clone();
    match shape.last_mut() {
        Some(last) if *last % 2 == 0 => *last /= 2,
        _ => return Err(wrong(0, ins[0], "an even last axis: gate and value side by side")),
    }
    one(ins[0].with_shape(shape))
}

fn halves(x: &tch::Tensor) -> Result<(tch::Tensor, tch::Tensor), OpErrorKind> {
    let sizes = x.size();
    let half = sizes.last().copied().unwrap_or(0) / 2;
    let at = axis(-1, sizes.len())? as i64;
    Ok((x.f_narrow(at, 0, half)?, x.f_narrow(at, half, half)?))
}

fn launch_swiglu(_: &Op, l: &Launch<'_>) -> Launched {
    let (a, b) = halves(l.at(0))?;
    Ok(smallvec![a.f_silu()?.f_mul_(&b)?])
}

fn vjp_swiglu(v: &Vjp<'_>) -> Result<Grads, OpError> {
    Ok(grad(v.call(Op::SwiGluBackward, &[v.g()?, v.input(0)?])?))
}

fn launch_swiglu_backward(_: &Op, l: &Launch<'_>) -> Launched {
    let g = l.at(0);
    let x = l.at(1);
    let (a, b) = halves(x)?;
    let out = tch::Tensor::f_empty(x.size(), (x.kind(), x.device()))?;
    let (ga, gb) = halves(&out)?;
    let _ = a.f_silu()?.f_mul_out(&gb, g)?;
    let _ = a.f_silu_backward_grad_input(&ga, &g.f_mul(&b)?)?;
    Ok(smallvec![out])
}

fn shape_where(_: &Op, ins: &[&Meta]) -> Inferred {
    boolean(0, ins[0])?;
    same_kind(&ins[1..])?;
    let both = broadcast(&ins[1].shape, &ins[2].shape)?;
    one(ins[1].with_shape(broadcast(&ins[0].shape, &both)?))
}

fn launch_where(_: &Op, l: &Launch<'_>) -> Launched {
    Ok(smallvec![l.at(1).f_where_self(l.at(0), l.at(2))?])
}

fn vjp_where(v: &Vjp<'_>) -> Result<Grads, OpError> {
    let g = v.g()?;
    let condition = v.input(0)?;
    let mut grads: Grads = smallvec![None, None, None];
    for (i, when) in [(1, true), (2, false)] {
        if v.needs(i) {
            let kept = v.call(Op::Keep { when }, &[condition, g])?;
            grads[i] = fit(v, i, kept)?;
        }
    }
    Ok(grads)
}

fn shape_keep(_: &Op, ins: &[&Meta]) -> Inferred {
    boolean(0, ins[0])?;
    if broadcast(&ins[0].shape, &ins[1].shape)? != ins[1].shape {
        return Err(mismatch(&ins[0].shape, &ins[1].shape, "truth values that broadcast to the numbers"));
    }
    one(ins[1].clone())
}

fn launch_keep(op: &Op, l: &Launch<'_>) -> Launched {
    let condition = l.at(0);
    let g = l.at(1);
    let Op::Keep { when } = op else { unreachable!("row of another operation") };
    Ok(smallvec![if *when { g.f_where_scalarother(condition, 0.0)? } else { g.f_masked_fill(condition, 0.0)? }])
}

fn arithmetic(d: &mut Draw, binary: Binary) -> Vec<Sample> {
    let a = d.size(2, 4);
    let b = d.size(5, 7);
    let c = d.size(2, 3);
    let op = Op::Binary(binary);
    let right = |shape: &[i64]| if binary == Binary::Div { between(shape, 0.5, 2.0) } else { normal(shape) };
    vec![
        sample(op.clone(), [normal(&[a, b]), right(&[a, b])]),
        sample(op.clone(), [normal(&[a, b, c]), right(&[b, 1])]),
        sample(op.clone(), [normal(&[b]), right(&[a, 1, b])]),
        sample(op.clone(), [normal(&[c, b]).transposed(), right(&[]).strided()]),
        sample(op.clone(), [normal(&[]), right(&[a, b]).transposed()]),
        sample(op, [normal(&[a, 0]), right(&[1, 1])]),
    ]
}

/// An f64 constant is added or subtracted in two parts, so that its offset does not swallow the signal.
fn lower_binary(op: &Op, l: &mut Lower<'_>) -> Lowered {
    use graph::Binary as Plain;
    let Op::Binary(binary) = op else { unreachable!("row of another operation") };
    let a = l.at(0);
    let b = l.at(1);
    only(match (binary, l.rests.get(&b).copied()) {
        (Binary::Sub, Some(rest)) => {
            // Two constants in a row a runtime may add to one, as TensorFlow does, and the rest is lost: it must not look like one.
            let centred = l.binary(Plain::Sub, a, b)?;
            let is_number = l.finite(a)?;
            let zero = l.number(0.0);
            let rest = l.emit(graph::Op::Where, &[is_number, rest, zero])?;
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

fn lower_swiglu(_: &Op, l: &mut Lower<'_>) -> Lowered {
    let x = l.at(0);
    let last = l.rank(x) - 1;
    let half = l.size(x, last)? / 2;
    let gate = l.slice(x, last, 0, half)?;
    let rest = l.slice(x, last, half, half)?;
    let gate = l.silu(gate)?;
    only(l.mul(gate, rest)?)
}

fn lower_keep(op: &Op, l: &mut Lower<'_>) -> Lowered {
    let Op::Keep { when } = op else { unreachable!("row of another operation") };
    let test = l.at(0);
    let x = l.at(1);
    let zero = l.number(0.0);
    let ins = if *when { [test, x, zero] } else { [test, zero, x] };
    only(l.emit(graph::Op::Where, &ins)?)
}
