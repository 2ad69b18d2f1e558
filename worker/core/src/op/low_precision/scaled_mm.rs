//! The product of two 8-bit matrices.

use super::eight_bits;
use super::product::{Product, kernel};
use crate::op::prelude::*;

attributes! {
    /// Operands: a (M,K), b (N,K), their multipliers, a bias (N) if `bias`. Result: a bᵀ (M,N).
    ScaledMm {
        out: Kind,
        bias: bool,
        /// Whether the hardware's short accumulator may sum.
        fast: bool,
    } => SCALED_MM;
}

const SCALED_MM: OpRow<ScaledMm> =
    OpRow::<ScaledMm>::backward("scaled_mm", shape, |op, l| Ok(smallvec![product(op, l).plain()?]))
        .kernels(&[kernel(|op, l| Ok(smallvec![product(op, l).cublas()?]))])
        .flops(|_, ins, outs| (2 * outs[0].numel() * ins[0].shape[1]).max(0) as u64);

fn shape(op: &ScaledMm, ins: &[&Meta]) -> Inferred {
    let a = ins[0];
    let b = ins[1];
    eight_bits(0, a)?;
    eight_bits(1, b)?;
    if a.shape[1] != b.shape[1] {
        return Err(mismatch(&a.shape, &b.shape, "equal last axes"));
    }
    for operand in [2, 3] {
        if ins[operand].rank() != 0 || ins[operand].kind != Kind::Float {
            return Err(wrong(operand, ins[operand], "an f32 multiplier of 0 axes"));
        }
    }
    if op.bias && ins[4].shape.as_slice() != [b.shape[0]] {
        return Err(wrong(4, ins[4], "a bias of shape (out)"));
    }
    one(Meta { kind: op.out, ..a.with_shape([a.shape[0], b.shape[0]].as_slice()) })
}

fn product<'a>(op: &ScaledMm, l: &Launch<'a>) -> Product<'a> {
    let ins = l.ins;
    let bias = if op.bias { Some(ins[4]) } else { None };
    Product { a: ins[0], b: ins[1], scales: [ins[2], ins[3]], bias, out: op.out, fast: op.fast }
}
