//! The generator Philox-4x32-10 in tensor operations.
//!
//! Element e of a site uses word e mod 4 of block ⌊e / 4⌋; the counter is (block low, block high, site, step low) and the key (seed low,
//! seed high ⊕ step high).

use crate::error::OpErrorKind;
use tch::{Kind, Tensor as Raw};

const MASK: i64 = 0xFFFF_FFFF;
const ROUNDS: usize = 10;
const MULTIPLIERS: (i64, i64) = (0xD251_1F53, 0xCD9E_8D57);
const WEYL: (i64, i64) = (0x9E37_79B9, 0xBB67_AE85);

/// Words below this are kept by a dropout of rate `p`.
pub(super) fn keep_threshold(p: f64) -> i64 {
    (((1.0 - p) * 4294967296.0) as i64).min(MASK)
}

fn low(x: &Raw) -> Result<Raw, OpErrorKind> {
    Ok(x.f_bitwise_and(MASK)?)
}

fn high(x: &Raw) -> Result<Raw, OpErrorKind> {
    // The shift is arithmetic, hence the mask.
    low(&x.f_bitwise_right_shift_tensor_scalar(32)?)
}

/// High and low 32 bits of a product of 32-bit numbers held in 64-bit tensors; the 64-bit product wraps to the right bits.
fn product(x: &Raw, by: i64) -> Result<(Raw, Raw), OpErrorKind> {
    let wide = x.f_mul_scalar(by)?;
    Ok((high(&wide)?, low(&wide)?))
}

/// Returns this rank's `elements` words of a site as a 64-bit tensor, made of tensor operations on any device without looking at
/// the key from the host.
///
/// # Errors
/// Errors of libtorch, e.g. lack of memory.
pub fn philox_words(key: &Raw, site: u32, elements: i64) -> Result<Raw, OpErrorKind> {
    let number = |i: i64| key.f_select(0, i);
    let seed = number(0)?;
    let step = number(1)?;
    let first_row = number(2)?;
    let rows = number(3)?;
    // first_row is 0 when rows is unknown.
    let per_row = rows.f_full_like(elements)?.f_floor_divide(&rows.f_clamp_min(1)?)?;
    let index = Raw::f_arange(elements, (Kind::Int64, key.device()))?.f_add(&first_row.f_mul(&per_row)?)?;
    let block = index.f_bitwise_right_shift_tensor_scalar(2)?;
    let spread = |x: &Raw| x.f_expand_as(&block);
    let mut c = [low(&block)?, high(&block)?, block.f_full_like(i64::from(site))?, spread(&low(&step)?)?];
    let mut k = (low(&seed)?, high(&seed)?.f_bitwise_xor_tensor(&high(&step)?)?);
    for _ in 0..ROUNDS {
        let (high0, low0) = product(&c[0], MULTIPLIERS.0)?;
        let (high1, low1) = product(&c[2], MULTIPLIERS.1)?;
        let first = high1.f_bitwise_xor_tensor(&c[1])?.f_bitwise_xor_tensor(&k.0)?;
        let third = high0.f_bitwise_xor_tensor(&c[3])?.f_bitwise_xor_tensor(&k.1)?;
        c = [first, low1, third, low0];
        k = (low(&k.0.f_add_scalar(WEYL.0)?)?, low(&k.1.f_add_scalar(WEYL.1)?)?);
    }
    let word = index.f_bitwise_and(3)?.f_unsqueeze(1)?;
    Ok(Raw::f_stack(&c, 1)?.f_gather(1, &word, false)?.f_squeeze_dim(1)?)
}
