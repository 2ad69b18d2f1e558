//! Dropout from a counter: the mask is a function of (seed, step, site, element) and is never stored.
//!
//! The generator is Philox-4x32-10. Element e of a site uses word e mod 4 of block ⌊e / 4⌋; the counter is (block low,
//! block high, site, step low) and the key (seed low, seed high ⊕ step high). An element is kept where its word is
//! below ⌊(1−p)·2³²⌋. Recomputing, restarting, or splitting the batch over ranks gives the same mask. The numbers come
//! in a tensor on the device, so that a captured graph draws anew at each replay.

use super::Op;
use super::attr::F64Bits;
use super::cuda;
use super::infer::{Inferred, float, one, wrong};
use super::lower::itself;
use super::row::{Kernel, Launch, Launched, OpRow, Tolerance, per_result};
use super::sample::{Draw, Sample, key, normal, sample};
use super::value::Meta;
use super::vjp::{Grads, Vjp};
use crate::backend::torch::safe::{DropoutParams, dropout, has_cpu_kernel};
use crate::error::{OpError, OpErrorKind};
use smallvec::smallvec;
use tch::{Kind, Tensor as Raw};

/// Dropout, DropPath.
///
/// Operands: x, and the random key: int64 (seed, step, this rank's first row, its rows; rows 0 for unknown).
pub static ROWS: [OpRow; 2] = [
    OpRow::forward("dropout", shape, launch, vjp, |d| samples(d, |p| Op::Dropout { p, site: 3 }))
        .saves(0b10, 0)
        .kernels(&[CPU, cuda::DROPOUT])
        .flops(per_result::<2>)
        .lowers(itself),
    OpRow::forward("drop_path", shape, launch, vjp, |d| samples(d, |p| Op::DropPath { p, site: 5 }))
        .saves(0b10, 0)
        .kernels(&[CPU, cuda::DROPOUT])
        .flops(per_result::<2>)
        .lowers(itself),
];

/// The vectorised generator of `shim/cpu_kernels.cpp`.
const CPU: Kernel = Kernel {
    id: "cpu.dropout",
    fits: |_, l| if has_cpu_kernel(l.at(0)) { Ok(()) } else { Err("not f32 or f64 on the CPU") },
    launch: launch_cpu,
    tolerance: Tolerance::Exact,
    deterministic: true,
};

fn shape(op: &Op, ins: &[&Meta]) -> Inferred {
    float(0, ins[0])?;
    if ins[1].kind != Kind::Int64 || ins[1].shape.as_slice() != [4] {
        return Err(wrong(1, ins[1], "the random key: 4 64-bit integers"));
    }
    let (Op::Dropout { p, .. } | Op::DropPath { p, .. }) = op else { unreachable!("row of another operation") };
    if !(0.0..1.0).contains(&p.get()) {
        return Err(OpErrorKind::Attribute { name: "p", found: p.get(), expected: "a rate in 0..1" });
    }
    one(ins[0].clone())
}

/// One dropout, taken apart.
struct Call {
    p: f64,
    site: u32,
    /// Whether whole rows of the first axis are dropped.
    rows: bool,
    elements: i64,
    /// One factor per row spreads over the other axes.
    column: Vec<i64>,
}

fn parts(op: &Op, x: &Raw) -> Call {
    let (p, site, rows) = match op {
        Op::Dropout { p, site } => (p.get(), *site, false),
        Op::DropPath { p, site } => (p.get(), *site, true),
        _ => unreachable!("row of another operation"),
    };
    let sizes = x.size();
    let elements = if rows { sizes.first().copied().unwrap_or(1) } else { x.numel() as i64 };
    let column = (0..sizes.len()).map(|axis| if axis == 0 { elements } else { 1 }).collect();
    Call { p, site, rows, elements, column }
}

fn launch_cpu(op: &Op, l: &Launch<'_>) -> Launched {
    let x = l.at(0);
    let call = parts(op, l.at(0));
    let [seed, step, first_row, rows] = key_numbers(l.at(1))?;
    let first = if rows == 0 { 0 } else { first_row * (call.elements / rows) };
    let scale = 1.0 / (1.0 - call.p);
    let seed = seed.cast_unsigned();
    let step = step.cast_unsigned();
    let threshold = keep_threshold(call.p) as u32;
    let drop = DropoutParams { seed, step, site: call.site, first: first as u64, threshold, scale };
    let made = dropout(x, call.rows, &drop)?;
    if !call.rows {
        return Ok(smallvec![made]);
    }
    // Chosen, not multiplied by 0: a dropped row is 0 even where it is not finite.
    let keep = made.f_view(call.column.as_slice())?.f_gt(0.0)?;
    Ok(smallvec![x.f_where_scalarother(&keep, 0.0)?.f_mul_scalar_(scale)?])
}

/// The numbers of a key on the CPU.
fn key_numbers(key: &Raw) -> Result<[i64; 4], OpErrorKind> {
    let mut numbers = [0i64; 4];
    key.f_copy_data(&mut numbers, 4)?;
    Ok(numbers)
}

fn launch(op: &Op, l: &Launch<'_>) -> Launched {
    let x = l.at(0);
    let call = parts(op, l.at(0));
    let words = philox_words(l.at(1), call.site, call.elements)?;
    let shape = if call.rows { call.column } else { x.size() };
    let keep = words.f_lt(keep_threshold(call.p))?.f_view(shape.as_slice())?;
    Ok(smallvec![x.f_mul_scalar(1.0 / (1.0 - call.p))?.f_where_scalarother(&keep, 0.0)?])
}

/// The gradient is the operation itself: the same mask and scale.
fn vjp(v: &Vjp<'_>) -> Result<Grads, OpError> {
    Ok(smallvec![Some(v.call(v.op().clone(), &[v.g()?, v.input(1)?])?), None])
}

/// Words below this are kept.
pub(super) fn keep_threshold(p: f64) -> i64 {
    (((1.0 - p) * 4294967296.0) as i64).min(MASK)
}

const MASK: i64 = 0xFFFF_FFFF;
const ROUNDS: usize = 10;
const MULTIPLIERS: (i64, i64) = (0xD251_1F53, 0xCD9E_8D57);
const WEYL: (i64, i64) = (0x9E37_79B9, 0xBB67_AE85);

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

/// This rank's `elements` words of a site as a 64-bit tensor, made of tensor operations on any device without looking at
/// the key from the host.
///
/// # Errors
/// What libtorch says, e.g. no memory.
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

fn samples(d: &mut Draw, op: fn(F64Bits) -> Op) -> Vec<Sample> {
    let a = d.size(2, 4);
    let b = d.size(5, 7);
    vec![
        sample(op(0.3.into()), [normal(&[a, b, 3]), key()]),
        sample(op(0.5.into()), [normal(&[b, a]).transposed(), key()]),
        sample(op(0.9.into()), [normal(&[a, 0]), key()]),
        sample(op(0.5.into()), [normal(&[]), key()]),
    ]
}
