//! Low precision beside the model: copies of the weights, the loss scale, and products of 8-bit matrices with one scale each.
//!
//! An 8-bit matrix is kept as numbers q of 8 bits and a multiplier s, x ≈ q·s, with s = largest |x| / largest q, taken anew at
//! each call and never read by the host. Every product is a bᵀ over rows, the one layout the hardware has; what is needed
//! the other way round is therefore written transposed while it is quantised. Forward operands are e4m3 (3 mantissa
//! bits), gradients e5m2 (2 mantissa bits, a wider range).

pub mod cast_into;
pub mod fp8_linear;
mod product;
pub mod quantize;
pub mod scale_update;
pub mod scaled_mm;

use super::prelude::*;

/// Kind of forward operands.
pub const FORWARD: Kind = Kind::Float8e4m3fn;
pub const GRADIENT: Kind = Kind::Float8e5m2;
/// Sizes of 8-bit matrices are multiples of this.
pub const ALIGN: i64 = 16;

/// Largest finite number of a kind.
fn largest(kind: Kind) -> Result<f64, OpErrorKind> {
    match kind {
        FORWARD => Ok(448.0),
        GRADIENT => Ok(57344.0),
        found => Err(OpErrorKind::Kind { operand: 0, found, expected: "e4m3 or e5m2" }),
    }
}

fn eight_bits(operand: usize, meta: &Meta) -> Result<(), OpErrorKind> {
    largest(meta.kind).map(|_| ()).map_err(|_| OpErrorKind::Kind {
        operand,
        found: meta.kind,
        expected: "e4m3 or e5m2",
    })?;
    if meta.rank() != 2 || meta.shape.iter().any(|size| *size < ALIGN || size % ALIGN != 0) {
        return Err(wrong(operand, meta, "a matrix whose sizes are positive multiples of 16"));
    }
    Ok(())
}

/// Rows and columns of a tensor seen as a matrix over its last axis.
pub fn as_matrix(meta: &Meta) -> (i64, i64) {
    let columns = meta.shape.last().copied().unwrap_or(1);
    (meta.shape[..meta.rank().saturating_sub(1)].iter().product(), columns)
}
