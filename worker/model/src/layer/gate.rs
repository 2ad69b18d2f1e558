//! The gate that weighs the refinement.

use super::{Linear, Normalise};
use enn_common::config::model::Norm;
use enn_core::{
    autograd::{Cx, Tensor},
    error::OpError,
    functional,
    params::ParamBuilder,
};

pub const HIDDEN: i64 = 64;

/// p = σ(W₂ SiLU(W₁ LayerNorm(features))); W₂ begins at zero, so p begins at 0.5.
#[derive(Debug, Clone)]
pub struct SigmoidGate {
    norm: Normalise,
    hidden: Linear,
    out: Linear,
}

impl SigmoidGate {
    pub fn new(pb: &mut ParamBuilder, name: &str, features: i64) -> Self {
        pb.scoped(name, |pb| Self {
            norm: Normalise::new(pb, "norm", Norm::LayerNorm, features),
            hidden: Linear::biased(pb, "hidden", features, HIDDEN),
            out: Linear::zeroed(pb, "out", HIDDEN, 1),
        })
    }

    /// Maps (…, features) to p (…, 1) in (0, 1).
    pub fn forward(&self, cx: &Cx, features: &Tensor) -> Result<Tensor, OpError> {
        let hidden = self.hidden.forward(cx, &self.norm.forward(cx, features)?)?;
        let logit = self.out.forward(cx, &functional::silu(cx, &hidden)?)?;
        functional::sigmoid(cx, &logit)
    }
}
