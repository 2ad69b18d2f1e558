//! Dilated attention (LongNet): a few patterns of segments and dilations cover near tokens densely and far ones
//! sparsely, without an N × N product.
//!
//! The layer consists of existing operations and of `dilate` and `undilate`. The fused attention operation does not
//! return its softmax denominators, which are the weights that mix the patterns.

use super::{Linear, Width};
use enn_core::{
    autograd::{Cx, Tensor},
    error::OpError,
    functional::{self, Dir},
    op::infer::wide,
    params::ParamBuilder,
};
use tch::{Kind, Tensor as Raw};

/// Score of a masked key: finite in every dtype, and negligible after the softmax in f32.
const HIDDEN: f64 = -3e4;
/// Added to the scores of tokens that a pattern holds, larger than every score, so that a token without the pattern
/// never has the maximum.
const ABOVE: f64 = 1e5;

/// Segment length and dilation of one attention pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pattern {
    /// Tokens per segment; a multiple of `dilation`.
    pub segment: i64,
    /// Stride within a segment. Head h reads the positions h mod dilation, h mod dilation + dilation, … of each
    /// segment.
    pub dilation: i64,
}

/// softmax(q kᵀ/√Dh) v over the keys of all patterns that contain the query; a key in two of them counts twice.
///
/// This equals the attention of each pattern, weighted by the softmax denominators. The causal direction masks later
/// keys. W_qkv is (3D, D): for each head Dh rows of q, of k, of v; all have biases.
#[derive(Debug, Clone)]
pub struct Dilated {
    qkv: Linear,
    out: Linear,
    patterns: Vec<Pattern>,
    width: i64,
    heads: i64,
    direction: Dir,
}

/// Scores and values of one pattern, (B,S,H,L,·) each.
struct Gathered {
    pattern: Pattern,
    scores: Tensor,
    values: Tensor,
}

impl Dilated {
    /// Creates a layer for `direction`. The first pattern has dilation 1, so that it contains every token.
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

    /// Maps (B, N, D) to (B, N, D).
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

    /// Returns the scores of a pattern, and its values with a column of ones, which sums the denominators.
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

    /// Returns the masks to add to the scores: keys beyond the last token, and later keys.
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
    /// Shortens the segment to the tokens there are, rounded up to a multiple of the dilation.
    fn fitted(self, tokens: i64) -> Self {
        let whole = (tokens + self.dilation - 1) / self.dilation * self.dilation;
        Self { segment: self.segment.min(whole.max(self.dilation)), ..self }
    }
}

/// Returns each query's approximate largest score over all patterns, (B,N,H,1). It is subtracted before the
/// exponentials for range and cancels.
fn largest(cx: &Cx, gathered: &[Gathered], tokens: i64) -> Result<Tensor, OpError> {
    let mut all = Vec::with_capacity(gathered.len());
    for one in gathered {
        let scores = functional::detach(cx, &one.scores)?;
        let most = functional::max_dim(cx, &scores, -1, true)?;
        // The offset `ABOVE` needs more mantissa bits than 16-bit formats have.
        let most = functional::cast(cx, &most, wide(most.kind()))?;
        // A token that a pattern does not contain has 0 here, which is below the scores of all that it contains.
        let most = functional::add_scalar(cx, &most, ABOVE)?;
        all.push(functional::undilate(cx, &most, one.pattern.segment, one.pattern.dilation, tokens)?);
    }
    let most = match all.as_slice() {
        [only] => only.clone(),
        several => functional::max_dim(cx, &functional::stack(cx, &several.iter().collect::<Vec<_>>(), 0)?, 0, false)?,
    };
    functional::add_scalar(cx, &most, -ABOVE)
}
