//! Softmax attention, self and cross, with an optional additive bias per key.

use super::{Linear, Width};
use enn_core::{
    autograd::{Cx, Tensor},
    error::OpError,
    functional::{self, Structural},
    params::ParamBuilder,
};

/// softmax(q kᵀ/√Dh + bias) v in H heads; q, kv and out projections have biases.
///
/// W_kv is (2D, D): rows 0..D give k, D..2D give v.
#[derive(Debug, Clone)]
pub struct Attention {
    q: Linear,
    kv: Linear,
    out: Linear,
    width: i64,
    heads: i64,
}

impl Attention {
    /// Creates attention of token width `width.model` for queries and keys.
    pub fn new(pb: &mut ParamBuilder, name: &str, width: Width) -> Self {
        let d = width.model;
        pb.scoped(name, |pb| Self {
            q: Linear::biased(pb, "q", d, d),
            kv: Linear::biased(pb, "kv", d, 2 * d),
            out: Linear::biased(pb, "out", d, d),
            width: d,
            heads: width.heads,
        })
    }

    /// Lets queries (B, M, D) attend to keys (B, N, D) and returns (B, M, D); `key_bias` is (N).
    ///
    /// Queries of batch 1 serve every sample: they are projected once and expanded.
    pub fn forward(
        &self,
        cx: &Cx,
        queries: &Tensor,
        keys: &Tensor,
        key_bias: Option<&Tensor>,
    ) -> Result<Tensor, OpError> {
        let batch = keys.dim(0);
        let m = queries.dim(1);
        let n = keys.dim(1);
        let q = self.q.forward(cx, queries)?;
        let mut q = self.split_heads(cx, &q, queries.dim(0), m)?;
        if queries.dim(0) != batch {
            q = functional::expand(cx, &q, &[batch, self.heads, m, self.width / self.heads])?;
        }
        let kv = self.kv.forward(cx, keys)?;
        let kv = functional::split(cx, &kv, &[self.width, self.width], 2)?;
        let [k, v] = kv.as_slice() else { unreachable!("split gives one part per size") };
        let k = self.split_heads(cx, k, batch, n)?;
        let v = self.split_heads(cx, v, batch, n)?;
        let mixed = functional::sdpa(cx, &q, &k, &v, key_bias, Structural::None)?;
        let mixed = functional::transpose(cx, &mixed, 1, 2)?;
        let mixed = functional::reshape(cx, &mixed, &[batch, m, self.width])?;
        self.out.forward(cx, &mixed)
    }

    /// Maps (B, N, D) to (B, H, N, D/H).
    fn split_heads(&self, cx: &Cx, x: &Tensor, batch: i64, tokens: i64) -> Result<Tensor, OpError> {
        let x = functional::reshape(cx, x, &[batch, tokens, self.heads, self.width / self.heads])?;
        functional::transpose(cx, &x, 1, 2)
    }
}
