//! Dropout from a counter: the mask is a function of (seed, step, site, element) and is never stored.
//!
//! The generator is Philox-4x32-10. Element e of a site uses word e mod 4 of block ⌊e / 4⌋; the counter is (block low,
//! block high, site, step low) and the key (seed low, seed high ⊕ step high). An element is kept where its word is
//! below ⌊(1−p)·2³²⌋. Recomputing, restarting, or splitting the batch over ranks gives the same mask.

use super::Op;
use super::attr::F64Bits;
use super::infer::{Inferred, float, one};
use super::row::{Export, Launch, Launched, OpRow};
use super::sample::{Draw, Sample, normal, sample};
use super::value::Meta;
use super::vjp::{Grads, Vjp, grad};
use crate::backend::StepKey;
use crate::backend::torch::safe::{Drop, dropout, has_cpu_kernel};
use crate::error::{OpError, OpErrorKind};
use smallvec::smallvec;
use tch::{Device, Kind};

/// Dropout, DropPath.
pub static ROWS: [OpRow; 2] = [
    OpRow::forward("dropout", shape, launch, vjp, |d| samples(d, |p| Op::Dropout { p, site: 3 }))
        .flops(|_, ins, _| 10 * ins[0].numel().max(0) as u64)
        .export(Export::Graph("nothing: identity outside training")),
    OpRow::forward("drop_path", shape, launch, vjp, |d| samples(d, |p| Op::DropPath { p, site: 5 }))
        .export(Export::Graph("nothing: identity outside training")),
];

fn shape(op: &Op, ins: &[&Meta]) -> Inferred {
    float(0, ins[0])?;
    let (Op::Dropout { p, .. } | Op::DropPath { p, .. }) = op else { unreachable!("row of another operation") };
    if !(0.0..1.0).contains(&p.get()) {
        return Err(OpErrorKind::Attribute { name: "p", found: p.get(), expected: "a rate in 0..1" });
    }
    one(ins[0].clone())
}

fn launch(op: &Op, l: &Launch<'_>) -> Launched {
    let x = l.at(0);
    let (p, site, rows) = match op {
        Op::Dropout { p, site } => (p.get(), *site, false),
        Op::DropPath { p, site } => (p.get(), *site, true),
        _ => unreachable!("row of another operation"),
    };
    let sizes = x.size();
    let elements = if rows { sizes.first().copied().unwrap_or(1) } else { x.numel() as i64 };
    // One factor per row spreads over the other axes.
    let column: Vec<i64> = std::iter::once(elements).chain(sizes.iter().skip(1).map(|_| 1)).collect();
    let (first, threshold, scale) = (first_element(l.key, elements), keep_threshold(p), 1.0 / (1.0 - p));
    if has_cpu_kernel(x) {
        let drop = Drop { key: l.key, site, first: first as u64, threshold: threshold as u32, scale };
        let made = dropout(x, rows, &drop)?;
        return Ok(smallvec![if rows { x.f_mul(&made.f_view(column.as_slice())?)? } else { made }]);
    }
    let words = philox_words(l.key, site, first, elements, x.device())?;
    let shape = if rows { column } else { sizes };
    let keep = words.f_lt(threshold)?.f_view(shape.as_slice())?;
    Ok(smallvec![x.f_mul_scalar(scale)?.f_where_scalarother(&keep, 0.0)?])
}

/// The gradient is the operation itself: the same mask and scale.
fn vjp(v: &Vjp<'_>) -> Result<Grads, OpError> {
    Ok(grad(v.call(v.op().clone(), &[v.g()?])?))
}

/// Position of this rank's first element in the global tensor.
fn first_element(key: &StepKey, elements: i64) -> i64 {
    if key.rows == 0 { 0 } else { key.first_row as i64 * (elements / key.rows as i64) }
}

/// Words below this are kept.
fn keep_threshold(p: f64) -> i64 {
    (((1.0 - p) * 4294967296.0) as i64).min(MASK)
}

const MASK: i64 = 0xFFFF_FFFF;
const ROUNDS: usize = 10;
const MULTIPLIERS: (i64, i64) = (0xD251_1F53, 0xCD9E_8D57);
const WEYL: (i64, i64) = (0x9E37_79B9, 0xBB67_AE85);

/// High and low 32 bits of a product of 32-bit numbers held in 64-bit tensors.
fn product(x: &tch::Tensor, by: i64) -> Result<(tch::Tensor, tch::Tensor), OpErrorKind> {
    // The 64-bit product wraps to the right bits; the shift is arithmetic, hence the mask.
    let wide = x.f_mul_scalar(by)?;
    Ok((wide.f_bitwise_right_shift_tensor_scalar(32)?.f_bitwise_and(MASK)?, wide.f_bitwise_and(MASK)?))
}

/// Words `first..first + elements` of a site as a 64-bit tensor, made of tensor operations on any device.
///
/// # Errors
/// What libtorch says, e.g. no memory.
pub fn philox_words(
    key: &StepKey,
    site: u32,
    first: i64,
    elements: i64,
    device: Device,
) -> Result<tch::Tensor, OpErrorKind> {
    use tch::Tensor as T;
    let (block, skip) = (first.div_euclid(4), first.rem_euclid(4));
    let blocks = (skip + elements + 3) / 4;
    let index = T::f_arange_start(block, block + blocks, (Kind::Int64, device))?;
    let fill = |value: i64| T::f_full_like(&index, value);
    let mut c = [
        index.f_bitwise_and(MASK)?,
        index.f_bitwise_right_shift_tensor_scalar(32)?.f_bitwise_and(MASK)?,
        fill(i64::from(site))?,
        fill(key.step as i64 & MASK)?,
    ];
    let mut k = (key.seed as i64 & MASK, ((key.seed >> 32) ^ (key.step >> 32)) as i64 & MASK);
    for _ in 0..ROUNDS {
        let (high0, low0) = product(&c[0], MULTIPLIERS.0)?;
        let (high1, low1) = product(&c[2], MULTIPLIERS.1)?;
        let first = high1.f_bitwise_xor_tensor(&c[1])?.f_bitwise_xor(k.0)?;
        let third = high0.f_bitwise_xor_tensor(&c[3])?.f_bitwise_xor(k.1)?;
        c = [first, low1, third, low0];
        k = ((k.0 + WEYL.0) & MASK, (k.1 + WEYL.1) & MASK);
    }
    Ok(T::f_stack(&c, 1)?.f_view(-1)?.f_narrow(0, skip, elements)?)
}

fn samples(d: &mut Draw, op: fn(F64Bits) -> Op) -> Vec<Sample> {
    let (a, b) = (d.size(2, 4), d.size(5, 7));
    vec![
        sample(op(0.3.into()), [normal(&[a, b, 3])]),
        sample(op(0.5.into()), [normal(&[b, a]).transposed()]),
        sample(op(0.9.into()), [normal(&[a, 0])]),
    ]
}
