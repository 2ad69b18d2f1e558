//! The norms that stand alone. They differ in their statistics: the layer norm is (x − μ)/σ over the last axis, times a weight, plus a bias;
//! the RMS norm is x/√(mean of x² + eps), times a weight.

use super::{Norm, cpu, cuda, per_element, plain};
use crate::op::prelude::*;

/// Makes a norm and its reverse. `saves` says which results are saved, `eps` is that of the samples.
macro_rules! norm {
    ($($(#[$doc:meta])* $norm:ident => $row:ident $name:literal, $reverse:ident => $reverse_row:ident $reverse_name:literal:
        layer $layer:literal, saves $saves:literal, eps $eps:literal;)+) => {$(
        attributes! {
            $(#[$doc])*
            $norm { affine: bool, eps: F64Bits } => $row;
            /// The reverse. Operands: the gradient, x, the statistics, and the weight if `affine`. Results: the gradients of x and of the
            /// weights.
            $reverse { affine: bool } => $reverse_row;
        }

        impl $norm {
            fn norm(&self) -> Norm {
                Norm { layer: $layer, affine: self.affine, eps: self.eps.get() }
            }
        }

        const $row: OpRow<$norm> = OpRow::<$norm>::forward(
            $name,
            |_, ins| super::shape($layer, ins),
            |op, l| plain::norm(op.norm(), l),
            |op, v| super::vjp($layer, op.affine, $reverse { affine: op.affine }.into(), v),
            |d| super::samples(d, |affine| $norm { affine, eps: $eps.into() }, super::stats($layer)),
        )
        .saves(0b11, $saves)
        .kernels(&[
            Kernel::new("cuda.norm", |_, l| cuda::rows_fit(l.at(0)), |op, l| cuda::norm(op.norm(), l)),
            cpu::kernel(|op, l| cpu::norm(op.norm(), false, l)),
        ])
        .class(Class::Full)
        .flops(|op, ins, _| per_element($layer, op.affine)[0] * count(ins[0]))
        .lowers(|op, l| {
            let affine = l.ins[1..].to_vec();
            only(super::lower(l, $layer, l.at(0), &affine, op.eps.get())?)
        });

        const $reverse_row: OpRow<$reverse> = OpRow::<$reverse>::backward(
            $reverse_name,
            |op, ins| super::shape_backward($layer, op.affine, ins),
            |op, l| plain::norm_backward($layer, op.affine, l),
        )
        .kernels(&[
            Kernel::new(
                "cuda.norm_backward",
                |_, l| cuda::rows_fit(l.at(1)),
                |op, l| cuda::norm_backward($layer, op.affine, l),
            ),
            cpu::backward_kernel(|op, l| cpu::norm_backward($layer, op.affine, false, l)),
        ])
        .flops(|op, ins, _| per_element($layer, op.affine)[1] * count(ins[0]));
    )+};
}

norm! {
    /// Operands: x, and weight and bias if `affine`. Results: the output, then mean and 1/σ as saved intermediates.
    LayerNorm => LAYER_NORM "layer_norm", LayerNormBackward => LAYER_NORM_BACKWARD "layer_norm_backward":
        layer true, saves 0b110, eps 1e-5;
    /// Operands: x, and a weight if `affine`. Results: the output, then 1/rms as saved intermediates.
    RmsNorm => RMS_NORM "rms_norm", RmsNormBackward => RMS_NORM_BACKWARD "rms_norm_backward":
        layer false, saves 0b10, eps 1e-6;
}
