//! The retention scan as products with powers of λ: within chunks of positions, and over the chunks' ends the same again.

use super::CHUNK;
use crate::op::Retention;
use crate::op::attr::Dir;
use crate::op::prelude::*;
use enn_common::graph::{Binary, Dim, Id, Op as Plain, Unary};

/// Lowers the scan. What depends on λ alone is folded into constants.
pub(super) fn lower(op: &Retention, l: &mut Lower<'_>) -> Lowered {
    let v = l.at(0);
    let lambda = l.at(1);
    let n = l.size(v, 1)?;
    let start = op.state.then(|| l.at(2));
    if n == 0 {
        return lower_empty(l, op.dir, start);
    }
    let log = l.unary(Unary::Log, lambda)?;
    // (B,H,N,D) from here on.
    let v = l.swapped(v, 1, 2)?;
    if op.dir == Dir::Bidirectional {
        let y = both(l, v, log)?;
        return only(l.swapped(y, 1, 2)?);
    }
    let y = scan(l, v, log, start)?;
    let last = l.slice(y, 2, n - 1, 1)?;
    let carried = l.outs[1].clone();
    let last = l.reshape(last, &carried)?;
    Ok(smallvec![l.swapped(y, 1, 2)?, last])
}

fn lower_empty(l: &mut Lower<'_>, dir: Dir, start: Option<Id>) -> Lowered {
    let v = l.at(0);
    if dir == Dir::Bidirectional {
        return only(v);
    }
    let zero = l.number(0.0);
    let shape = l.outs[1].clone();
    let state = start.map_or_else(|| l.expand(zero, &shape), Ok)?;
    Ok(smallvec![v, state])
}

/// Both directions of v (B,H,N,D), the position itself counted once.
fn both(l: &mut Lower<'_>, v: Id, log: Id) -> Result<Id, LowerError> {
    let n = l.size(v, 2)?;
    if n <= CHUNK.unsigned_abs() {
        let distance = |t: u64, s: u64| Some(t.abs_diff(s));
        let weights = powers(l, log, [n, n], distance)?;
        return l.emit(Plain::MatMul, &[weights, v]);
    }
    let before = scan(l, v, log, None)?;
    let back = l.flipped(v, 2)?;
    let after = scan(l, back, log, None)?;
    let after = l.flipped(after, 2)?;
    let sum = l.add(before, after)?;
    l.binary(Binary::Sub, sum, v)
}

/// λ^distance (H, rows, columns), 0 where there is none.
fn powers(
    l: &mut Lower<'_>,
    log: Id,
    sizes: [u64; 2],
    distance: impl Fn(u64, u64) -> Option<u64>,
) -> Result<Id, LowerError> {
    let [rows, columns] = sizes;
    let heads = l.size(log, 0)?;
    let each = (0..rows).flat_map(|t| (0..columns).map(move |s| (t, s)));
    let far: Vec<Option<u64>> = each.map(|(t, s)| distance(t, s)).collect();
    let exponents: Vec<f32> = far.iter().map(|d| d.unwrap_or(0) as f32).collect();
    let exponents = l.floats(&[rows, columns], &exponents)?;
    let log = l.reshape(log, &[heads.into(), Dim::ONE, Dim::ONE])?;
    let logs = l.mul(log, exponents)?;
    let powers = l.unary(Unary::Exp, logs)?;
    if far.iter().all(Option::is_some) {
        return Ok(powers);
    }
    let keep: Vec<f32> = far.iter().map(|d| f32::from(u8::from(d.is_some()))).collect();
    let keep = l.floats(&[rows, columns], &keep)?;
    l.mul(powers, keep)
}

/// The causal scan of v (B,H,N,D) from `start` (B,H,D), zero if absent.
fn scan(l: &mut Lower<'_>, v: Id, log: Id, start: Option<Id>) -> Result<Id, LowerError> {
    let shape = l.shape(v);
    let batch = shape[0];
    let heads = shape[1];
    let n = l.size(v, 2)?;
    let width = shape[3];
    let chunk = n.min(CHUNK.unsigned_abs());
    let chunks = n.div_ceil(chunk);
    let lower = powers(l, log, [chunk, chunk], |t, s| t.checked_sub(s))?;
    if chunks == 1 {
        let y = l.emit(Plain::MatMul, &[lower, v])?;
        let Some(start) = start else { return Ok(y) };
        let start = l.reshape(start, &[batch, heads, Dim::ONE, width])?;
        return with_start(l, y, start, log, chunk);
    }
    let missing = chunks * chunk - n;
    let zero = l.number(0.0);
    let v = if missing == 0 {
        v
    } else {
        let rest = l.expand(zero, &[batch, heads, missing.into(), width])?;
        l.concat(&[v, rest], 2)?
    };
    // (B,K,H,C,D): one product per chunk and head.
    let v = l.reshape(v, &[batch, heads, chunks.into(), chunk.into(), width])?;
    let v = l.swapped(v, 1, 2)?;
    let y = l.emit(Plain::MatMul, &[lower, v])?;
    let ends = l.slice(y, 3, chunk - 1, 1)?;
    let ends = l.reshape(ends, &[batch, chunks.into(), heads, width])?;
    let ends = l.swapped(ends, 1, 2)?;
    let whole = l.scaled(log, chunk as f64)?;
    let after = scan(l, ends, whole, start)?;
    // What enters chunk k is what left chunk k − 1: (B,K,H,1,D).
    let first = match start {
        Some(start) => l.reshape(start, &[batch, heads, Dim::ONE, width])?,
        None => l.expand(zero, &[batch, heads, Dim::ONE, width])?,
    };
    let earlier = l.slice(after, 2, 0, chunks - 1)?;
    let before = l.concat(&[first, earlier], 2)?;
    let before = l.swapped(before, 1, 2)?;
    let before = l.reshape(before, &[batch, chunks.into(), heads, Dim::ONE, width])?;
    let y = with_start(l, y, before, log, chunk)?;
    let y = l.swapped(y, 1, 2)?;
    let y = l.reshape(y, &[batch, heads, (chunks * chunk).into(), width])?;
    l.slice(y, 2, 0, n)
}

/// Adds to y (…,H,C,D) what is left of the state (…,H,1,D) that a chunk began with: y + λ^(t+1)·start.
fn with_start(l: &mut Lower<'_>, y: Id, start: Id, log: Id, chunk: u64) -> Result<Id, LowerError> {
    let decay = powers(l, log, [chunk, 1], |t, _| Some(t + 1))?;
    let part = l.mul(start, decay)?;
    l.add(y, part)
}
