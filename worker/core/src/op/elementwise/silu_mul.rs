//! The gated product silu(a) · b.

use crate::backend::cuda::gated;
use crate::op::elementwise::gate;
use crate::op::prelude::*;

attributes! {
    /// Operands: a and b of one shape.
    SiluMul => SILU_MUL;
    /// The reverse. Operands: the gradient, a, b. Results: the gradients of a and b.
    SiluMulBackward => SILU_MUL_BACKWARD;
}

const SILU_MUL: OpRow<SiluMul> = OpRow::forward("silu_mul", shape, |_, l| gate::plain(l), vjp, samples)
    .saves(0b11, 0)
    .kernels(&[
        Kernel::new(
            "cuda.silu_mul",
            |_, l| on_device(l.at(0)),
            |_, l| Ok(smallvec![gated::silu_mul(l.at(0), l.at(1))?]),
        ),
        gate::cpu_kernel(),
    ])
    .class(Class::Widest)
    .per_result(5)
    .lowers(|_, l| {
        let gate = l.silu(l.at(0))?;
        only(l.mul(gate, l.at(1))?)
    });

const SILU_MUL_BACKWARD: OpRow<SiluMulBackward> = OpRow::backward(
    "silu_mul_backward",
    |_, ins| Ok(smallvec![ins[1].clone(), ins[2].clone()]),
    |_, l| gate::plain_backward(l),
)
.kernels(&[
    Kernel::new(
        "cuda.silu_mul_backward",
        |_, l| on_device(l.at(1)),
        |_, l| Ok(SmallVec::from(gated::silu_mul_backward(l.at(0), l.at(1), l.at(2))?)),
    ),
    gate::cpu_backward_kernel(),
])
.per_operand(11);

fn shape(_: &SiluMul, ins: &[&Meta]) -> Inferred {
    float(0, ins[0])?;
    same_kind(ins)?;
    if ins[0].shape != ins[1].shape {
        return Err(mismatch(&ins[0].shape, &ins[1].shape, "equal shapes"));
    }
    one(ins[0].clone())
}

fn vjp(_: &SiluMul, v: &Vjp<'_>) -> Result<Grads, OpError> {
    let outs = v.call_all(SiluMulBackward, &[v.g()?, v.input(0)?, v.input(1)?])?;
    Ok(outs.into_iter().map(Some).collect())
}

fn samples(d: &mut SampleRng) -> Vec<Sample> {
    let (a, b) = d.sizes();
    vec![
        sample(SiluMul, [normal(&[a, b, 3]), normal(&[a, b, 3])]),
        sample(SiluMul, [normal(&[b, a]).transposed(), normal(&[b, a]).strided()]),
        sample(SiluMul, [normal(&[0, a]), normal(&[0, a])]),
    ]
}
