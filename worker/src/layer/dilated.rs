//! Dilated attention: a few patterns of segments and dilations, near tokens densely and far ones thinly, never N × N.
//!
//! Made of operations that are there, and of `dilate` and its way back; the plain attention operation keeps its softmax
//! denominators to itself, and they are what the patterns are mixed by.

use super::{Linear, Width};
use crate::{
    autograd::{Cx, Tensor},
    error::OpError,
    functional::{self, Dir},
    op::infer::wide,
    params::ParamBuilder,
};
use tch::{Kind, Tensor as Raw};

/// Score of a key that must not be seen. Finite in every kind, and nothing beside it in f32.
const HIDDEN: f64 = -3e4;
/// Stands above every largest score, so that a token which a pattern does not hold never has the largest.
const ABOVE: f64 = 1e5;

/// A segment length and of how many tokens one is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pattern {
    /// Tokens per segment; a multiple of `dilation`.
    pub segment: i64,
    /// Head h takes the positions h mod dilation, h mod dilation + dilation, … of each segment.
    pub dilation: i64,
}

/// softmax(q kᵀ/√Dh) v over the keys of all patterns in which the query is; a key in two of them counts twice.
///
/// That is each pattern's attention, mixed by the softmax denominators. The causal direction leaves out later keys.
/// W_qkv is (3D, D): for each head Dh rows of q, of k, of v; all have biases.
#[derive(Debug, Clone)]
pub struct Dilated {
    qkv: Linear,
    out: Linear,
    patterns: Vec<Pattern>,
    width: i64,
    heads: i64,
    direction: Dir,
}

/// A pattern's tokens, (B,S,H,L,·) each.
struct Gathered {
    pattern: Pattern,
    scores: Tensor,
    values: Tensor,
}

impl Dilated {
    /// A layer that looks in `direction`. The first of the patterns has dilation 1, so that every token is in one.
    pub fn new(pb: &mut ParamBuilder, name: &str, width: Width, direction: Dir, patterns: &[Pattern]) -> Self {
        let d = width.model;
        pb.scoped(name, |pb| Self {
            qkv: Linear::biased(pb, "qkv", d, 3 * d),
            out: Linear::biased(pb, "out", d, d),
            patterns: patterns.to_vec(),
            width: d,
            heads: width.heads,
            direction,
        })
    }

    /// (B, N, D) → (B, N, D).
    ///
    /// # Errors
    /// When `x` is not (B, N, D).
    pub fn forward(&self, cx: &Cx, x: &Tensor) -> Result<Tensor, OpError> {
        let batch = x.dim(0);
        let tokens = x.dim(1);
        let dh = self.width / self.heads;
        let qkv = self.qkv.forward(cx, x)?;
        let qkv = functional::reshape(cx, &qkv, &[batch, tokens, self.heads, 3 * dh])?;
        let fitted = self.patterns.iter().map(|pattern| pattern.fitted(tokens));
        let gathered = fitted.map(|pattern| self.gather(cx, &qkv, pattern)).collect::<Result<Vec<_>, _>>()?;
        let largest = largest(cx, &gathered, tokens)?;
        let mut sum: Option<Tensor> = None;
        for one in &gathered {
            let Pattern { segment, dilation } = one.pattern;
            let shift = functional::dilate(cx, &largest, segment, dilation)?;
            let weights = functional::exp(cx, &functional::sub(cx, &one.scores, &shift)?)?;
            let read = functional::matmul(cx, &weights, &one.values)?;
            let read = functional::undilate(cx, &read, segment, dilation, tokens)?;
            sum = Some(match sum {
                None => read,
                Some(sum) => functional::add(cx, &sum, &read)?,
            });
        }
        let Some(sum) = sum else { unreachable!("there is a pattern of dilation 1") };
        let parts = functional::split(cx, &sum, &[dh, 1], 3)?;
        let mixed = functional::div(cx, &parts[0], &parts[1])?;
        self.out.forward(cx, &functional::reshape(cx, &mixed, &[batch, tokens, self.width])?)
    }

    /// Scores of a pattern, and its values with a column of ones, which adds up the denominators.
    fn gather(&self, cx: &Cx, qkv: &Tensor, pattern: Pattern) -> Result<Gathered, OpError> {
        let tokens = qkv.dim(1);
        let dh = self.width / self.heads;
        let taken = functional::dilate(cx, qkv, pattern.segment, pattern.dilation)?;
        let parts = functional::split(cx, &taken, &[dh, dh, dh], 4)?;
        let [q, k, v] = parts.as_slice() else { unreachable!("split gives one part per size") };
        let q = functional::scale(cx, q, 1.0 / (dh as f64).sqrt())?;
        let mut scores = functional::matmul_t(cx, &q, k, false, true)?;
        for hidden in self.hidden(cx, pattern, tokens, scores.kind())? {
            scores = functional::add(cx, &scores, &hidden)?;
        }
        let mut shape = v.shape().to_vec();
        shape[4] = 1;
        let values = functional::cat(cx, &[v, &functional::ones(cx, &shape, v.kind())?], 4)?;
        Ok(Gathered { pattern, scores, values })
    }

    /// What is added to scores: keys behind the end, and later keys.
    fn hidden(&self, cx: &Cx, pattern: Pattern, tokens: i64, kind: Kind) -> Result<Vec<Tensor>, OpError> {
        let Pattern { segment, dilation } = pattern;
        let len = segment / dilation;
        let make = || -> Result<Vec<Raw>, tch::TchError> {
            let mut made = Vec::new();
            if tokens % segment != 0 {
                let segments = (tokens + segment - 1) / segment;
                let at = |i: i64| {
                    let s = i / (self.heads * len);
                    let h = i / len % self.heads;
                    let l = i % len;
                    s * segment + l * dilation + h % dilation
                };
                let hide = |i: i64| if at(i) < tokens { 0.0 } else { HIDDEN };
                let cells: Vec<f64> = (0..segments * self.heads * len).map(hide).collect();
                made.push(Raw::f_from_slice(&cells)?.f_reshape([segments, self.heads, 1, len])?);
            }
            if self.direction == Dir::Causal && len > 1 {
                let hide = |i: i64| if i % len > i / len { HIDDEN } else { 0.0 };
                let cells: Vec<f64> = (0..len * len).map(hide).collect();
                made.push(Raw::f_from_slice(&cells)?.f_reshape([len, len])?);
            }
            made.into_iter().map(|raw| raw.f_to_kind(kind)?.f_to_device(cx.device())).collect()
        };
        let made = make().map_err(|error| cx.fail("dilated", error))?;
        Ok(made.into_iter().map(|raw| cx.constant(raw)).collect())
    }
}

impl Pattern {
    /// Of few tokens no more than is needed to hold them.
    fn fitted(self, tokens: i64) -> Self {
        let whole = (tokens + self.dilation - 1) / self.dilation * self.dilation;
        Self { segment: self.segment.min(whole.max(self.dilation)), ..self }
    }
}

/// Each query's largest score over all patterns, about, (B,N,H,1): what is taken off before exponents, and cancels.
fn largest(cx: &Cx, gathered: &[Gathered], tokens: i64) -> Result<Tensor, OpError> {
    let mut all = Vec::with_capacity(gathered.len());
    for one in gathered {
        let scores = functional::detach(cx, &one.scores)?;
        let most = functional::max_dim(cx, &scores, -1, true)?;
        // What stands far above needs more digits than 16 bits have.
        let most = functional::cast(cx, &most, wide(most.kind()))?;
        // Zero, where a pattern does not hold a token, is below all that are held.
        let most = functional::add_scalar(cx, &most, ABOVE)?;
        all.push(functional::undilate(cx, &most, one.pattern.segment, one.pattern.dilation, tokens)?);
    }
    let most = match all.as_slice() {
        [only] => only.clone(),
        several => functional::max_dim(cx, &functional::stack(cx, &several.iter().collect::<Vec<_>>(), 0)?, 0, false)?,
    };
    functional::add_scalar(cx, &most, -ABOVE)
}
