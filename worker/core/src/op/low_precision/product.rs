//! The scaled product a bᵀ of 8-bit matrices. Gradients are summed exactly, forward products with the hardware's short accumulator.

use crate::backend::torch::safe::{Arg, AtenOp, kind_code};
use crate::op::prelude::*;

/// The parts of one scaled product.
pub(super) struct Product<'a> {
    pub(super) a: &'a Raw,
    pub(super) b: &'a Raw,
    pub(super) scales: [&'a Raw; 2],
    pub(super) bias: Option<&'a Raw>,
    pub(super) out: Kind,
    pub(super) fast: bool,
}

/// A function that computes a product.
pub(super) type Run = fn(&Product<'_>) -> Result<Raw, OpErrorKind>;

impl Product<'_> {
    /// Computes it in f32, anywhere.
    pub(super) fn plain(&self) -> Result<Raw, OpErrorKind> {
        let wide = |t: &Raw| t.f_to_kind(Kind::Float);
        let scale = self.scales[0].f_mul(self.scales[1])?;
        let mut y = wide(self.a)?.f_mm(&wide(self.b)?.f_transpose(0, 1)?)?.f_mul_(&scale)?;
        if let Some(bias) = self.bias {
            y = y.f_add_(&wide(bias)?)?;
        }
        Ok(y.f_to_kind(self.out)?)
    }

    /// Computes it in 8 bits, by cuBLASLt.
    pub(super) fn cublas(&self) -> Result<Raw, OpErrorKind> {
        let mut outs = SCALED_MM.call(&[
            Arg::Tensor(self.a),
            Arg::Tensor(&self.b.f_transpose(0, 1)?),
            Arg::Tensor(self.scales[0]),
            Arg::Tensor(self.scales[1]),
            self.bias.map_or(Arg::None, Arg::Tensor),
            Arg::None,
            Arg::Int(kind_code(self.out)),
            Arg::Bool(self.fast),
        ])?;
        Ok(outs.swap_remove(0))
    }
}

static SCALED_MM: AtenOp = AtenOp::new(c"aten::_scaled_mm", c"");

/// Creates the entry of an operation that contains such a product.
pub(super) const fn kernel<A>(launch: fn(&A, &Launch<'_>) -> Launched) -> Kernel<A> {
    Kernel {
        tolerance: Tolerance::EightBits,
        ..Kernel::new(
            "cublas.scaled_mm",
            |_, l| if matches!(l.at(0).device(), Device::Cuda(_)) { Ok(()) } else { Err("not on CUDA") },
            launch,
        )
    }
}
