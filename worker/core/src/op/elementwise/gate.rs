//! silu(a) · b and its reverse, by libtorch and by `shim/cpu_rows.cpp`: what SiluMul, SwiGlu and the gated norm have in common.

use crate::backend::torch::safe::{gate, gate_backward, has_wide_kernel};
use crate::op::prelude::*;

/// Runs silu(a) · b of two operands.
pub(in crate::op) fn plain(l: &Launch<'_>) -> Launched {
    Ok(smallvec![l.at(0).f_silu()?.f_mul_(l.at(1))?])
}

/// Returns the gradients of a and b from operands gradient, a, b.
pub(in crate::op) fn plain_backward(l: &Launch<'_>) -> Launched {
    let g = l.at(0);
    let a = l.at(1);
    let b = l.at(2);
    Ok(smallvec![a.f_silu_backward(&g.f_mul(b)?)?, a.f_silu()?.f_mul_(g)?])
}

/// Runs silu(a) · b of two operands, or of the halves of one. libtorch goes over memory several times.
pub(in crate::op) fn cpu(l: &Launch<'_>) -> Launched {
    Ok(smallvec![gate(l.at(0), l.ins.get(1).copied())?])
}

/// Runs the reverse of [`cpu`].
pub(in crate::op) fn cpu_backward(l: &Launch<'_>) -> Launched {
    Ok(gate_backward(l.at(0), l.at(1), l.ins.get(2).copied())?.collect())
}

pub(super) const fn cpu_kernel<A>() -> Kernel<A> {
    Kernel::new("cpu.gate", |_, l| wide_fits(l), |_, l| cpu(l))
}

pub(super) const fn cpu_backward_kernel<A>() -> Kernel<A> {
    Kernel::new("cpu.gate", |_, l| wide_fits(l), |_, l| cpu_backward(l))
}

/// Whether the kernels of `shim/cpu_rows.cpp` take the operands.
pub(in crate::op) fn wide_fits(l: &Launch<'_>) -> Fit {
    if has_wide_kernel(l.ins) { Ok(()) } else { Err("not f32 on a CPU with AVX2") }
}
