//! The RMS norm: x/√(mean of x² + eps) over the last axis, times a weight.

use super::{Norm, cpu, cuda, per_element, plain};
use crate::op::prelude::*;

attributes! {
    /// Operands: x, and a weight if `affine`. Results: the output, then 1/rms as saved intermediates.
    RmsNorm { affine: bool, eps: F64Bits } => RMS_NORM;
    /// The reverse. Operands: the gradient, x, the statistics, and the weight if `affine`. Results: the gradients of x and of the weights.
    RmsNormBackward { affine: bool } => RMS_NORM_BACKWARD;
}

impl RmsNorm {
    fn norm(&self) -> Norm {
        Norm { layer: false, affine: self.affine, eps: self.eps.get() }
    }
}

const RMS_NORM: OpRow<RmsNorm> = OpRow::<RmsNorm>::forward(
    "rms_norm",
    |_, ins| super::shape(false, ins),
    |op, l| plain::norm(op.norm(), l),
    |op, v| super::vjp(false, op.affine, RmsNormBackward { affine: op.affine }.into(), v),
    |d| super::samples(d, |affine| RmsNorm { affine, eps: 1e-6.into() }, 1),
)
.saves(0b11, 0b10)
.kernels(&[
    Kernel::new("cuda.norm", |_, l| cuda::rows_fit(l.at(0)), |op, l| cuda::norm(op.norm(), l)),
    cpu::kernel(|op, l| cpu::norm(op.norm(), false, l)),
])
.class(Class::Full)
.flops(|op, ins, _| per_element(false, op.affine)[0] * count(ins[0]))
.lowers(|op, l| {
    let affine = l.ins[1..].to_vec();
    only(super::lower(l, false, l.at(0), &affine, op.eps.get())?)
});

const RMS_NORM_BACKWARD: OpRow<RmsNormBackward> = OpRow::<RmsNormBackward>::backward(
    "rms_norm_backward",
    |op, ins| super::shape_backward(false, op.affine, ins),
    |op, l| plain::norm_backward(false, op.affine, l),
)
.kernels(&[
    Kernel::new("cuda.norm_backward", |_, l| cuda::rows_fit(l.at(1)), |op, l| cuda::norm_backward(false, op.affine, l)),
    cpu::backward_kernel(|op, l| cpu::norm_backward(false, op.affine, false, l)),
])
.flops(|op, ins, _| per_element(false, op.affine)[1] * count(ins[0]));
