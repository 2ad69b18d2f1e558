//! Tokens cut into segments of which every r-th is taken, and their return: it makes dilated attention sparse.
//!
//! Head h takes the positions h mod r, h mod r + r, … of each segment, so that r heads together take all. Each of the two
//! operations is the other's reverse.

use crate::op::prelude::*;
use enn_common::graph::{Dim, Op as Plain};

attributes! {
    /// x (B,N,H,W) → (B,S,H,L,W) with S = ⌈N/segment⌉ and L = segment/dilation; zeros behind the end.
    Dilate { segment: i64, dilation: i64 } => DILATE;
    /// (B,S,H,L,W) → (B,N,H,W); zeros where a head takes nothing.
    Undilate { segment: i64, dilation: i64, tokens: i64 } => UNDILATE;
}

const DILATE: OpRow<Dilate> = OpRow::forward("dilate", shape, launch, vjp, samples).free().lowers(lower);

const UNDILATE: OpRow<Undilate> =
    OpRow::forward("undilate", shape_back, launch_back, vjp_back, samples_back).free().lowers(lower_back);

/// Refuses a segment and a dilation that do not fit each other.
fn check(segment: i64, dilation: i64) -> Result<(), OpErrorKind> {
    if dilation < 1 || segment < dilation || segment % dilation != 0 {
        let expected = "a positive multiple of the dilation";
        return Err(OpErrorKind::Attribute { name: "segment", found: segment as f64, expected });
    }
    Ok(())
}

fn segments(tokens: i64, segment: i64) -> i64 {
    (tokens + segment - 1) / segment
}

fn shape(op: &Dilate, ins: &[&Meta]) -> Inferred {
    let Dilate { segment, dilation } = *op;
    check(segment, dilation)?;
    let &[b, n, h, w] = ins[0].shape.as_slice() else { return Err(wrong(0, ins[0], "(batch, tokens, heads, width)")) };
    one(ins[0].with_shape([b, segments(n, segment), h, segment / dilation, w].as_slice()))
}

fn shape_back(op: &Undilate, ins: &[&Meta]) -> Inferred {
    let Undilate { segment, dilation, tokens } = *op;
    check(segment, dilation)?;
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

fn launch(op: &Dilate, l: &Launch<'_>) -> Launched {
    let Dilate { segment, dilation } = *op;
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

fn launch_back(op: &Undilate, l: &Launch<'_>) -> Launched {
    let Undilate { segment, dilation, tokens: n } = *op;
    let x = l.at(0);
    let (b, s, h, len, w) = x.size5()?;
    let whole = Raw::f_zeros([b, s, len, dilation, h, w], (x.kind(), x.device()))?;
    for offset in 0..dilation.min(h) {
        let part = x.f_slice(2, offset, None, dilation)?.f_transpose(2, 3)?;
        taken(&whole, offset, dilation)?.f_copy_(&part)?;
    }
    Ok(smallvec![whole.f_reshape([b, s * segment, h, w])?.f_narrow(1, 0, n)?.f_contiguous()?])
}

fn vjp(op: &Dilate, v: &Vjp<'_>) -> Result<Grads, OpError> {
    let Dilate { segment, dilation } = *op;
    Ok(grad(v.call(Undilate { segment, dilation, tokens: v.shape(0)[1] }, &[v.g()?])?))
}

fn vjp_back(op: &Undilate, v: &Vjp<'_>) -> Result<Grads, OpError> {
    Ok(grad(v.call(Dilate { segment: op.segment, dilation: op.dilation }, &[v.g()?])?))
}

/// (segment, dilation, tokens, heads): whole and cut segments, more and fewer heads than offsets, no token.
const CASES: [(i64, i64, i64, i64); 5] = [(4, 1, 8, 2), (4, 2, 11, 3), (6, 3, 13, 2), (8, 2, 3, 4), (4, 2, 0, 2)];

fn samples(d: &mut SampleRng) -> Vec<Sample> {
    let b = d.size(1, 2);
    let w = d.size(2, 3);
    let call = |&(segment, dilation, tokens, heads): &(i64, i64, i64, i64)| {
        sample(Dilate { segment, dilation }, [normal(&[b, tokens, heads, w]).strided()])
    };
    CASES.iter().map(call).collect()
}

fn samples_back(d: &mut SampleRng) -> Vec<Sample> {
    let b = d.size(1, 2);
    let w = d.size(2, 3);
    let call = |&(segment, dilation, tokens, heads): &(i64, i64, i64, i64)| {
        let shape = [b, segments(tokens, segment), heads, segment / dilation, w];
        sample(Undilate { segment, dilation, tokens }, [normal(&shape).transposed()])
    };
    CASES.iter().map(call).collect()
}

/// Lowers with tokens (B,S·segment,H,W) seen as (B,S,L,r·H,W): head h takes position h mod r of each r.
fn lower(op: &Dilate, l: &mut Lower<'_>) -> Lowered {
    let Dilate { segment, dilation } = *op;
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

fn lower_back(op: &Undilate, l: &mut Lower<'_>) -> Lowered {
    let Undilate { segment, dilation, tokens } = *op;
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
