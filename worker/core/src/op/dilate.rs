//! Tokens cut into segments of which every r-th is taken, and the way back: what makes dilated attention sparse.
//!
//! Head h takes the positions h mod r, h mod r + r, … of each segment, so that r heads together take all. Each of the two
//! operations is the other's reverse.

use super::Op;
use super::infer::{Inferred, one, wrong};
use super::lower::{Lower, Lowered, only};
use super::row::{Launch, Launched, OpRow, free};
use super::sample::{Draw, Sample, normal, sample};
use super::value::Meta;
use super::vjp::{Grads, Vjp, grad};
use crate::error::{OpError, OpErrorKind};
use enn_common::graph::{Dim, Op as Plain};
use smallvec::smallvec;
use tch::Tensor as Raw;

/// Dilate: x (B,N,H,W) → (B,S,H,L,W) with S = ⌈N/segment⌉ and L = segment/dilation; zeros behind the end.
///
/// Undilate: (B,S,H,L,W) → (B,N,H,W); zeros where a head takes nothing.
pub static ROWS: [OpRow; 2] = [
    OpRow::forward("dilate", shape, launch, vjp, |d| samples(d, false)).flops(free).lowers(lower),
    OpRow::forward("undilate", shape_back, launch_back, vjp_back, |d| samples(d, true)).flops(free).lowers(lower_back),
];

/// The row of either operation.
pub(super) fn row(op: &Op) -> &'static OpRow {
    &ROWS[usize::from(matches!(op, Op::Undilate { .. }))]
}

/// Segment, dilation, tokens (0 for `Dilate`).
fn sizes(op: &Op) -> (i64, i64, i64) {
    match *op {
        Op::Dilate { segment, dilation } => (segment, dilation, 0),
        Op::Undilate { segment, dilation, tokens } => (segment, dilation, tokens),
        _ => unreachable!("row of another operation"),
    }
}

/// Segment and dilation that fit each other.
fn checked(op: &Op) -> Result<(i64, i64), OpErrorKind> {
    let (segment, dilation, _) = sizes(op);
    if dilation < 1 || segment < dilation || segment % dilation != 0 {
        let expected = "a positive multiple of the dilation";
        return Err(OpErrorKind::Attribute { name: "segment", found: segment as f64, expected });
    }
    Ok((segment, dilation))
}

fn segments(tokens: i64, segment: i64) -> i64 {
    (tokens + segment - 1) / segment
}

fn shape(op: &Op, ins: &[&Meta]) -> Inferred {
    let (segment, dilation) = checked(op)?;
    let &[b, n, h, w] = ins[0].shape.as_slice() else { return Err(wrong(0, ins[0], "(batch, tokens, heads, width)")) };
    one(ins[0].with_shape([b, segments(n, segment), h, segment / dilation, w].as_slice()))
}

fn shape_back(op: &Op, ins: &[&Meta]) -> Inferred {
    let (segment, dilation) = checked(op)?;
    let (_, _, tokens) = sizes(op);
    match *ins[0].shape.as_slice() {
        [b, s, h, l, w] if s == segments(tokens, segment) && l == segment / dilation => {
            one(ins[0].with_shape([b, tokens, h, w].as_slice()))
        }
        _ => Err(wrong(0, ins[0], "(batch, segments, heads, taken, width) of these tokens")),
    }
}

/// The part of `whole` (B,S,L,r,H,W) that the heads o, o + r, … take, (B,S,L,heads,W), as a view.
fn taken(whole: &Raw, offset: i64, dilation: i64) -> Result<Raw, OpErrorKind> {
    Ok(whole.f_select(3, offset)?.f_slice(3, offset, None, dilation)?)
}

fn launch(op: &Op, l: &Launch<'_>) -> Launched {
    let (segment, dilation, _) = sizes(op);
    let (b, n, h, w) = l.at(0).size4()?;
    let s = segments(n, segment);
    let len = segment / dilation;
    let padded = l.at(0).f_constant_pad_nd([0, 0, 0, 0, 0, s * segment - n])?;
    let whole = padded.f_reshape([b, s, len, dilation, h, w])?;
    if dilation == 1 {
        return Ok(smallvec![whole.f_select(3, 0)?.f_transpose(2, 3)?.f_contiguous()?]);
    }
    let out = Raw::f_zeros([b, s, h, len, w], (padded.kind(), padded.device()))?;
    for offset in 0..dilation.min(h) {
        let part = taken(&whole, offset, dilation)?.f_transpose(2, 3)?;
        out.f_slice(2, offset, None, dilation)?.f_copy_(&part)?;
    }
    Ok(smallvec![out])
}

fn launch_back(op: &Op, l: &Launch<'_>) -> Launched {
    let (segment, dilation, n) = sizes(op);
    let x = l.at(0);
    let &[b, s, h, len, w] = x.size().as_slice() else { unreachable!("the shape rule saw five axes") };
    let whole = Raw::f_zeros([b, s, len, dilation, h, w], (x.kind(), x.device()))?;
    for offset in 0..dilation.min(h) {
        let part = x.f_slice(2, offset, None, dilation)?.f_transpose(2, 3)?;
        taken(&whole, offset, dilation)?.f_copy_(&part)?;
    }
    Ok(smallvec![whole.f_reshape([b, s * segment, h, w])?.f_narrow(1, 0, n)?.f_contiguous()?])
}

fn vjp(v: &Vjp<'_>) -> Result<Grads, OpError> {
    let (segment, dilation, _) = sizes(v.op());
    Ok(grad(v.call(Op::Undilate { segment, dilation, tokens: v.shape(0)[1] }, &[v.g()?])?))
}

fn vjp_back(v: &Vjp<'_>) -> Result<Grads, OpError> {
    let (segment, dilation, _) = sizes(v.op());
    Ok(grad(v.call(Op::Dilate { segment, dilation }, &[v.g()?])?))
}

/// (segment, dilation, tokens, heads): whole and cut segments, more and fewer heads than offsets, no token.
const CASES: [(i64, i64, i64, i64); 5] = [(4, 1, 8, 2), (4, 2, 11, 3), (6, 3, 13, 2), (8, 2, 3, 4), (4, 2, 0, 2)];

fn samples(d: &mut Draw, back: bool) -> Vec<Sample> {
    let b = d.size(1, 2);
    let w = d.size(2, 3);
    let case = |(segment, dilation, tokens, heads): (i64, i64, i64, i64)| {
        if back {
            let shape = [b, segments(tokens, segment), heads, segment / dilation, w];
            sample(Op::Undilate { segment, dilation, tokens }, [normal(&shape).transposed()])
        } else {
            sample(Op::Dilate { segment, dilation }, [normal(&[b, tokens, heads, w]).strided()])
        }
    };
    CASES.into_iter().map(case).collect()
}

/// Tokens (B,S·segment,H,W) seen as (B,S,L,r·H,W): head h takes position h mod r of each r.
fn lower(op: &Op, l: &mut Lower<'_>) -> Lowered {
    let (segment, dilation, _) = sizes(op);
    let x = l.at(0);
    let r = dilation.unsigned_abs();
    let batch = l.shape(x)[0];
    let n = l.size(x, 1)?;
    let h = l.size(x, 2)?;
    let w = l.size(x, 3)?;
    let out = l.outs[0].clone();
    let s = n.div_ceil(segment.unsigned_abs());
    let len = segment.unsigned_abs() / r;
    let missing = s * segment.unsigned_abs() - n;
    let mut whole = x;
    if missing > 0 {
        let zero = l.number(0.0);
        let rest = l.expand(zero, &[batch, missing.into(), h.into(), w.into()])?;
        whole = if n == 0 { rest } else { l.concat(&[x, rest], 1)? };
    }
    let whole = l.reshape(whole, &[batch, s.into(), len.into(), (r * h).into(), w.into()])?;
    let taken: Vec<i64> = (0..h).map(|head| (head % r * h + head).cast_signed()).collect();
    let taken = l.picked(whole, 3, &taken)?;
    let made = l.permute(taken, &[0, 1, 3, 2, 4])?;
    only(l.reshape(made, &out)?)
}

fn lower_back(op: &Op, l: &mut Lower<'_>) -> Lowered {
    let (segment, dilation, tokens) = sizes(op);
    let x = l.at(0);
    let r = dilation.unsigned_abs();
    let shape = l.shape(x);
    let batch = shape[0];
    let s = l.size(x, 1)?;
    let h = l.size(x, 2)?;
    let len = l.size(x, 3)?;
    let w = l.size(x, 4)?;
    let thin = l.permute(x, &[0, 1, 3, 2, 4])?;
    // (B,S·L,1,H,W) against which offsets (r,H,1) a head takes.
    let thin = l.reshape(thin, &[batch, (s * len).into(), Dim::ONE, h.into(), w.into()])?;
    let own: Vec<u8> = (0..r).flat_map(|o| (0..h).map(move |head| u8::from(head % r == o))).collect();
    let own = l.truths(&[r, h, 1], own)?;
    let zero = l.number(0.0);
    let whole = l.emit(Plain::Where, &[own, thin, zero])?;
    let whole = l.reshape(whole, &[batch, (s * segment.unsigned_abs()).into(), h.into(), w.into()])?;
    only(l.slice(whole, 1, 0, tokens.unsigned_abs())?)
}
