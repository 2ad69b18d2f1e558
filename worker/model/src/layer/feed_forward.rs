//! SwiGLU: the only feed-forward form of the model.

use super::Linear;
use enn_core::{
    autograd::{Cx, Tensor},
    error::OpError,
    functional,
    params::ParamBuilder,
};

/// out = W_out (SiLU(g) ⊙ u) with (g, u) = halves of W_in x; no biases.
///
/// W_in is (2 · hidden, D), first half g, second half u; W_out is (D, hidden).
#[derive(Debug, Clone)]
pub struct FeedForward {
    input: Linear,
    output: Linear,
}

impl FeedForward {
    /// Returns the hidden width of the configuration: ⌊D · mlp_ratio · 2/3⌋, at least 1.
    pub fn hidden_width(d_model: usize, mlp_ratio: f64) -> i64 {
        ((d_model as f64 * mlp_ratio * 2.0 / 3.0).floor() as i64).max(1)
    }

    /// Creates a feed-forward of token width `width`.
    pub fn new(pb: &mut ParamBuilder, name: &str, width: i64, hidden: i64) -> Self {
        pb.scoped(name, |pb| Self {
            input: Linear::unbiased(pb, "in", width, 2 * hidden),
            output: Linear::unbiased(pb, "out", hidden, width),
        })
    }

    /// (…, D) → (…, D).
    pub fn forward(&self, cx: &Cx, x: &Tensor) -> Result<Tensor, OpError> {
        let both = self.input.forward(cx, x)?;
        self.output.forward(cx, &functional::swiglu_gate(cx, &both)?)
    }
}
