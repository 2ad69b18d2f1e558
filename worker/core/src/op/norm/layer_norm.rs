//! The layer norm: (x − μ)/σ over the last axis, times a weight, plus a bias.

use super::{Norm, cpu, cuda, per_element, plain};
use crate::op::prelude::*;

attributes! {
    /// Operands: x, and weight and bias if `affine`. Results: the output, then mean and 1/σ as saved intermediates.
    LayerNorm { affine: bool, eps: F64Bits } => LAYER_NORM;
    /// The reverse. Operands: the gradient, x, the statistics, and the weight if `affine`. Results: the gradients of x and of the weights.
    LayerNormBackward { affine: bool } => LAYER_NORM_BACKWARD;
}

impl LayerNorm {
    fn norm(&self) -> Norm {
        Norm { layer: true, affine: self.affine, eps: self.eps.get() }
    }
}

const LAYER_NORM: OpRow<LayerNorm> = OpRow::<LayerNorm>::forward(
    "layer_norm",
    |_, ins| super::shape(true, ins),
    |op, l| plain::norm(op.norm(), l),
    |op, v| super::vjp(true, op.affine, LayerNormBackward { affine: op.affine }.into(), v),
    |d| super::samples(d, |affine| LayerNorm { affine, eps: 1e-5.into() }, 2),
)
.saves(0b11, 0b110)
.kernels(&[
    Kernel::new("cuda.norm", |_, l| cuda::rows_fit(l.at(0)), |op, l| cuda::norm(op.norm(), l)),
    cpu::kernel(|op, l| cpu::norm(op.norm(), false, l)),
])
.class(Class::Full)
.flops(|op, ins, _| per_element(true, op.affine)[0] * count(ins[0]))
.lowers(|op, l| {
    let affine = l.ins[1..].to_vec();
    only(super::lower(l, true, l.at(0), &affine, op.eps.get())?)
});

const LAYER_NORM_BACKWARD: OpRow<LayerNormBackward> = OpRow::<LayerNormBackward>::backward(
    "layer_norm_backward",
    |op, ins| super::shape_backward(true, op.affine, ins),
    |op, l| plain::norm_backward(true, op.affine, l),
)
.kernels(&[
    Kernel::new("cuda.norm_backward", |_, l| cuda::rows_fit(l.at(1)), |op, l| cuda::norm_backward(true, op.affine, l)),
    cpu::backward_kernel(|op, l| cpu::norm_backward(true, op.affine, false, l)),
])
.flops(|op, ins, _| per_element(true, op.affine)[1] * count(ins[0]));
