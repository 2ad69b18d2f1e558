//! Dropout from a counter: the mask is a function of (seed, step, site, element) and is never stored.
//!
//! An element is kept where its word of `philox` is below ⌊(1−p)·2³²⌋. Recomputing, restarting, or splitting the batch over ranks gives
//! the same mask. The numbers come in a tensor on the device, so that a captured graph draws anew at each replay.
//!
//! Dropout of elements and of whole rows share everything but the shape of the mask, so that they are one file.

use super::philox::{keep_threshold, philox_words};
use crate::backend::cuda::dropout as cuda;
use crate::backend::torch::safe::{DropoutParams, dropout, has_cpu_kernel};
use crate::op::prelude::*;

attributes! {
    /// Operands: x, and the random key: int64 (seed, step, this rank's first row, its rows; rows 0 for unknown).
    Dropout { p: F64Bits, site: u32 } => DROPOUT;
    /// Dropout of whole rows of the first axis. Operands as for [`Dropout`].
    DropPath { p: F64Bits, site: u32 } => DROP_PATH;
}

/// The attributes of either.
#[derive(Clone, Copy)]
struct DropCall {
    p: f64,
    site: u32,
    /// Whether whole rows of the first axis are dropped.
    rows: bool,
}

trait Drops: Clone + Into<crate::op::Op> {
    fn call(&self) -> DropCall;
}

impl Drops for Dropout {
    fn call(&self) -> DropCall {
        DropCall { p: self.p.get(), site: self.site, rows: false }
    }
}

impl Drops for DropPath {
    fn call(&self) -> DropCall {
        DropCall { p: self.p.get(), site: self.site, rows: true }
    }
}

const DROPOUT: OpRow<Dropout> = row("dropout", |d| samples(d, |p| Dropout { p, site: 3 }))
    .kernels(&[cpu(|op, l| launch_cpu(op.call(), l)), cuda(|op, l| launch_cuda(op.call(), l))]);
const DROP_PATH: OpRow<DropPath> = row("drop_path", |d| samples(d, |p| DropPath { p, site: 5 }))
    .kernels(&[cpu(|op, l| launch_cpu(op.call(), l)), cuda(|op, l| launch_cuda(op.call(), l))]);

const fn row<A: Drops>(name: &'static str, samples: fn(&mut SampleRng) -> Vec<Sample>) -> OpRow<A> {
    OpRow::<A>::forward(name, |op, ins| shape(op.call(), ins), |op, l| launch(op.call(), l), vjp, samples)
        .saves(0b10, 0)
        .per_result(2)
        .lowers(itself)
}

fn vjp<A: Drops>(op: &A, v: &Vjp<'_>) -> Result<Grads, OpError> {
    Ok(smallvec![Some(v.call(op.clone(), &[v.g()?, v.input(1)?])?), None])
}

/// The vectorised generator of `shim/cpu_kernels.cpp`.
const fn cpu<A>(launch: fn(&A, &Launch<'_>) -> Launched) -> Kernel<A> {
    let fits = |_: &A, l: &Launch<'_>| if has_cpu_kernel(l.at(0)) { Ok(()) } else { Err("not f32 or f64 on the CPU") };
    Kernel::new("cpu.dropout", fits, launch).exact()
}

const fn cuda<A>(launch: fn(&A, &Launch<'_>) -> Launched) -> Kernel<A> {
    Kernel::new("cuda.dropout", |_, l| on_device(l.at(0)), launch).exact()
}

fn shape(op: DropCall, ins: &[&Meta]) -> Inferred {
    float(0, ins[0])?;
    if ins[1].kind != Kind::Int64 || ins[1].shape.as_slice() != [4] {
        return Err(wrong(1, ins[1], "the random key: 4 64-bit integers"));
    }
    if !(0.0..1.0).contains(&op.p) {
        return Err(OpErrorKind::Attribute { name: "p", found: op.p, expected: "a rate in 0..1" });
    }
    one(ins[0].clone())
}

/// Number of random words for `x`, and the shape in which one factor per row spreads over the other axes.
fn words(op: DropCall, x: &Raw) -> (i64, Vec<i64>) {
    let sizes = x.size();
    let elements = if op.rows { sizes.first().copied().unwrap_or(1) } else { x.numel() as i64 };
    let column = (0..sizes.len()).map(|axis| if axis == 0 { elements } else { 1 }).collect();
    (elements, column)
}

fn launch(op: DropCall, l: &Launch<'_>) -> Launched {
    let x = l.at(0);
    let (elements, column) = words(op, x);
    let words = philox_words(l.at(1), op.site, elements)?;
    let shape = if op.rows { column } else { x.size() };
    let keep = words.f_lt(keep_threshold(op.p))?.f_view(shape.as_slice())?;
    Ok(smallvec![x.f_mul_scalar(1.0 / (1.0 - op.p))?.f_where_scalarother(&keep, 0.0)?])
}

fn launch_cpu(op: DropCall, l: &Launch<'_>) -> Launched {
    let x = l.at(0);
    let (elements, column) = words(op, x);
    let [seed, step, first_row, rows] = key_numbers(l.at(1))?;
    let first = if rows == 0 { 0 } else { first_row * (elements / rows) };
    let scale = 1.0 / (1.0 - op.p);
    let seed = seed.cast_unsigned();
    let step = step.cast_unsigned();
    let threshold = keep_threshold(op.p) as u32;
    let drop = DropoutParams { seed, step, site: op.site, first: first as u64, threshold, scale };
    let made = dropout(x, op.rows, &drop)?;
    if !op.rows {
        return Ok(smallvec![made]);
    }
    // Chosen, not multiplied by 0: a dropped row is 0 even where it is not finite.
    let keep = made.f_view(column.as_slice())?.f_gt(0.0)?;
    Ok(smallvec![x.f_where_scalarother(&keep, 0.0)?.f_mul_scalar_(scale)?])
}

/// The numbers of a key on the CPU.
fn key_numbers(key: &Raw) -> Result<[i64; 4], OpErrorKind> {
    let mut numbers = [0i64; 4];
    key.f_copy_data(&mut numbers, 4)?;
    Ok(numbers)
}

fn launch_cuda(op: DropCall, l: &Launch<'_>) -> Launched {
    let DropCall { p, site, rows } = op;
    let threshold = keep_threshold(p) as u32;
    let scale = 1.0 / (1.0 - p);
    Ok(smallvec![cuda::dropout(&cuda::Dropout { x: l.at(0), key: l.at(1), site, threshold, scale, rows })?])
}

fn samples<A: Into<crate::op::Op>>(d: &mut SampleRng, op: fn(F64Bits) -> A) -> Vec<Sample> {
    let (a, b) = d.sizes();
    vec![
        sample(op(0.3.into()), [normal(&[a, b, 3]), key()]),
        sample(op(0.5.into()), [normal(&[b, a]).transposed(), key()]),
        sample(op(0.9.into()), [normal(&[a, 0]), key()]),
        sample(op(0.5.into()), [normal(&[]), key()]),
    ]
}
