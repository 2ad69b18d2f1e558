//! Multi-scale retention: a gated exponential moving sum per head, linear in the number of tokens.

use super::{Linear, Normalise, Width};
use crate::{
    autograd::{Cx, Tensor},
    error::OpError,
    functional::{self, Direction},
    params::{Group, Init, ParamBuilder, ParamId},
};

/// β's allowed range: λ = 1 − 2^(−β) from 0.5 to 1 − 1.5e-5.
const BETA_RANGE: (f64, f64) = (1.0, 16.0);
/// β of head h begins at `BETA_START + h/H`.
const BETA_START: f64 = 5.0;

/// (q, v, g) = x W_qvg;  s = Σ_j λ_h^|t−j| v_j;  out = W_o (Norm(q ⊙ s) ⊙ SiLU(g)).
///
/// The sum runs over j ≤ t (causal) or over all j (bidirectional: forward + backward − v).
/// W_qvg is (3D, D): rows 0..D give q, D..2D give v, 2D..3D give g; W_o is (D, D); β is (H). No biases.
#[derive(Debug, Clone)]
pub struct Retention {
    qvg: Linear,
    out: Linear,
    norm: Normalise,
    beta: ParamId,
    width: i64,
    heads: i64,
    direction: Direction,
}

impl Retention {
    /// A retention layer that looks in `direction`.
    pub fn new(pb: &mut ParamBuilder, name: &str, width: Width, direction: Direction) -> Self {
        let (d, heads) = (width.model, width.heads);
        pb.scoped(name, |pb| Self {
            qvg: Linear::unbiased(pb, "qvg", d, 3 * d),
            out: Linear::unbiased(pb, "out", d, d),
            norm: Normalise::new(pb, "norm", width.norm, d),
            beta: pb.param("beta", &[heads], Init::Value(beta_start(heads)), Group::NoDecay),
            width: d,
            heads,
            direction,
        })
    }

    /// Decay per head (H): 1 − 2^(−clamp β).
    fn lambda(&self, cx: &Cx) -> Result<Tensor, OpError> {
        let beta = functional::clamp(cx, &cx.param(self.beta), BETA_RANGE.0, BETA_RANGE.1)?;
        let forget = functional::exp(cx, &functional::scale(cx, &beta, -std::f64::consts::LN_2)?)?;
        functional::add_scalar(cx, &functional::neg(cx, &forget)?, 1.0)
    }

    /// (B, N, D) → (B, N, D), and for the causal direction the state (B, H, D/H) after the last token.
    ///
    /// `state` is what an earlier call on the preceding tokens returned; `None` begins with zeros.
    ///
    /// # Errors
    /// When `x` is not (B, N, D), or a state is given to the bidirectional form.
    pub fn forward(
        &self,
        cx: &Cx,
        x: &Tensor,
        state: Option<&Tensor>,
    ) -> Result<(Tensor, Option<Tensor>), OpError> {
        let d = self.width;
        let (batch, tokens) = (x.dim(0), x.dim(1));
        let qvg = self.qvg.forward(cx, x)?;
        let q = functional::narrow(cx, &qvg, 2, 0, d)?;
        let v = functional::narrow(cx, &qvg, 2, d, d)?;
        let g = functional::narrow(cx, &qvg, 2, 2 * d, d)?;
        let v = functional::reshape(cx, &v, &[batch, tokens, self.heads, d / self.heads])?;
        let (sums, state) = functional::retention_scan(cx, &v, &self.lambda(cx)?, self.direction, state)?;
        let sums = functional::reshape(cx, &sums, &[batch, tokens, d])?;
        let y = self.norm.forward(cx, &functional::mul(cx, &q, &sums)?)?;
        let y = functional::mul(cx, &y, &functional::silu(cx, &g)?)?;
        Ok((self.out.forward(cx, &y)?, state))
    }
}

fn beta_start(heads: i64) -> Vec<f32> {
    (0..heads).map(|h| (BETA_START + h as f64 / heads as f64) as f32).collect()
}
