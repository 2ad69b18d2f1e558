//! A matrix in 8 bits, and its transposed.

use super::{as_matrix, eight_bits, largest};
use crate::backend::cuda::quantize;
use crate::backend::torch::safe::{Arg, AtenOp, kind_code};
use crate::op::prelude::*;

attributes! {
    /// Operand: x (…, C) of R rows. Results: q (R,C), qᵀ (C,R) in its own memory, s (0 axes, f32).
    Quantize { to: Kind } => QUANTIZE;
}

/// Smallest multiplier: keeps 0/0 away when a matrix is all zero.
const SCALE_MIN: f64 = 1e-30;

const QUANTIZE: OpRow<Quantize> = OpRow::backward("quantize", shape, launch)
    .kernels(&[Kernel::new("cuda.quantize", |_, l| on_device(l.at(0)), launch_cuda).exact()])
    .per_operand(5);

fn shape(op: &Quantize, ins: &[&Meta]) -> Inferred {
    float(0, ins[0])?;
    let (rows, columns) = as_matrix(ins[0]);
    let made = |shape: [i64; 2]| Meta { kind: op.to, ..ins[0].with_shape(shape.as_slice()) };
    let q = made([rows, columns]);
    let qt = made([columns, rows]);
    eight_bits(0, &q)?;
    Ok(smallvec![q, qt, Meta { kind: Kind::Float, ..ins[0].with_shape([].as_slice()) }])
}

static VECTOR_NORM: AtenOp = AtenOp::new(c"aten::linalg_vector_norm", c"");

fn launch(op: &Quantize, l: &Launch<'_>) -> Launched {
    let largest = largest(op.to)?;
    let columns = l.at(0).size().last().copied().unwrap_or(1);
    let x = l.at(0).f_reshape([-1, columns])?;
    let in_f32 = Arg::Int(kind_code(Kind::Float));
    let mut size = VECTOR_NORM.call(&[
        Arg::Tensor(&x),
        Arg::Real(f64::INFINITY),
        Arg::None,
        Arg::Bool(false),
        if x.kind() == Kind::Double { Arg::None } else { in_f32 },
    ])?;
    let scale = size.swap_remove(0).f_to_kind(Kind::Float)?.f_mul_scalar_(1.0 / largest)?.f_clamp_min_(SCALE_MIN)?;
    // In f32 at least: x in 16 bits would round the multiplier to 16 bits too.
    let wide = if x.kind() == Kind::Double { x } else { x.f_to_kind(Kind::Float)? };
    // The cast to 8 bits does not saturate: what rounding puts above the largest number would become NaN.
    let q = wide.f_mul(&scale.f_reciprocal()?)?.f_clamp_(-largest, largest)?.f_to_kind(op.to)?;
    let qt = q.f_transpose(0, 1)?.f_contiguous()?;
    Ok(smallvec![q, qt, scale])
}

fn launch_cuda(op: &Quantize, l: &Launch<'_>) -> Launched {
    let made = quantize::quantize(l.at(0), op.to)?;
    Ok(smallvec![made.q, made.transposed, made.scale])
}
