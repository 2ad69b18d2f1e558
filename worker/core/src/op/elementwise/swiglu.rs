//! The gate of SwiGLU: silu(a) · b of the halves a and b of the last axis.

use crate::backend::cuda::gated;
use crate::op::elementwise::gate;
use crate::op::prelude::*;

attributes! {
    SwiGlu => SWI_GLU;
    /// The reverse. Operands: the gradient, and both halves side by side.
    SwiGluBackward => SWI_GLU_BACKWARD;
}

const SWI_GLU: OpRow<SwiGlu> =
    OpRow::forward("swiglu", shape, launch, |_, v| Ok(grad(v.call(SwiGluBackward, &[v.g()?, v.input(0)?])?)), samples)
        .saves(1, 0)
        .kernels(&[
            Kernel::new("cuda.swiglu", |_, l| on_device(l.at(0)), |_, l| Ok(smallvec![gated::swiglu(l.at(0))?])),
            gate::cpu_kernel(),
        ])
        .per_result(5)
        .lowers(lower);

const SWI_GLU_BACKWARD: OpRow<SwiGluBackward> =
    OpRow::backward("swiglu_backward", |_, ins| one(ins[1].clone()), launch_backward)
        .kernels(&[
            Kernel::new(
                "cuda.swiglu_backward",
                |_, l| on_device(l.at(1)),
                |_, l| Ok(smallvec![gated::swiglu_backward(l.at(0), l.at(1))?]),
            ),
            gate::cpu_backward_kernel(),
        ])
        .per_operand(11);

fn shape(_: &SwiGlu, ins: &[&Meta]) -> Inferred {
    float(0, ins[0])?;
    let mut shape = ins[0].shape.clone();
    match shape.last_mut() {
        Some(last) if *last % 2 == 0 => *last /= 2,
        _ => return Err(wrong(0, ins[0], "an even last axis: gate and value side by side")),
    }
    one(ins[0].with_shape(shape))
}

fn halves(x: &Raw) -> Result<(Raw, Raw), OpErrorKind> {
    let sizes = x.size();
    let half = sizes.last().copied().unwrap_or(0) / 2;
    let at = axis(-1, sizes.len())? as i64;
    Ok((x.f_narrow(at, 0, half)?, x.f_narrow(at, half, half)?))
}

fn launch(_: &SwiGlu, l: &Launch<'_>) -> Launched {
    let (a, b) = halves(l.at(0))?;
    Ok(smallvec![a.f_silu()?.f_mul_(&b)?])
}

fn launch_backward(_: &SwiGluBackward, l: &Launch<'_>) -> Launched {
    let g = l.at(0);
    let x = l.at(1);
    let (a, b) = halves(x)?;
    let out = Raw::f_empty(x.size(), (x.kind(), x.device()))?;
    let (ga, gb) = halves(&out)?;
    let _ = a.f_silu()?.f_mul_out(&gb, g)?;
    let _ = a.f_silu_backward_grad_input(&ga, &g.f_mul(&b)?)?;
    Ok(smallvec![out])
}

fn samples(d: &mut SampleRng) -> Vec<Sample> {
    let a = d.size(2, 4);
    let b = d.size(3, 5);
    vec![
        sample(SwiGlu, [normal(&[a, 3, 2 * b])]),
        sample(SwiGlu, [normal(&[b, 2 * a]).transposed()]),
        sample(SwiGlu, [normal(&[0, 2 * a])]),
    ]
}

fn lower(_: &SwiGlu, l: &mut Lower<'_>) -> Lowered {
    let x = l.at(0);
    let last = l.rank(x) - 1;
    let half = l.size(x, last)? / 2;
    let gate = l.slice(x, last, 0, half)?;
    let rest = l.slice(x, last, half, half)?;
    let gate = l.silu(gate)?;
    only(l.mul(gate, rest)?)
}
