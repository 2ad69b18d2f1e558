//! Normalisation over the last axis, with learned scale.

use enn_common::config::model::Norm;
use enn_core::{
    autograd::{Cx, Tensor},
    error::OpError,
    functional,
    params::{Group, Init, ParamBuilder, ParamId},
};

/// Added to the variance (LayerNorm) or the mean square (RMSNorm).
pub const EPS: f64 = 1e-5;

/// LayerNorm or RMSNorm over the last axis of width D; scale begins at 1, shift at 0.
#[derive(Debug, Clone)]
pub enum Normalise {
    /// (x − mean) / √(var + ε) · weight + bias.
    Layer {
        /// Scale (D), begins at 1.
        weight: ParamId,
        /// Shift (D), begins at 0.
        bias: ParamId,
    },
    /// x / √(mean x² + ε) · weight.
    Rms {
        /// Scale (D), begins at 1.
        weight: ParamId,
    },
}

impl Normalise {
    /// Creates the kind that the configuration names.
    pub fn new(pb: &mut ParamBuilder, name: &str, kind: Norm, width: i64) -> Self {
        pb.scoped(name, |pb| {
            let weight = pb.param("weight", &[width], Init::Ones, Group::NoDecay);
            match kind {
                Norm::LayerNorm => {
                    Self::Layer { weight, bias: pb.param("bias", &[width], Init::Zeros, Group::NoDecay) }
                }
                Norm::RmsNorm => Self::Rms { weight },
            }
        })
    }

    /// Returns x + branch and its norm, both (…, D). `x` may have batch 1.
    pub fn add_forward(&self, cx: &Cx, x: &Tensor, branch: &Tensor) -> Result<(Tensor, Tensor), OpError> {
        if x.shape() != branch.shape() {
            let sum = functional::add(cx, x, branch)?;
            let normed = self.forward(cx, &sum)?;
            return Ok((sum, normed));
        }
        let (weight, bias) = self.affine(cx);
        functional::add_norm(cx, x, branch, &weight, bias.as_ref(), EPS)
    }

    /// Returns silu(gate) · norm(q · s), all of shape (…, D).
    pub fn gated_forward(&self, cx: &Cx, s: &Tensor, q: &Tensor, gate: &Tensor) -> Result<Tensor, OpError> {
        let (weight, bias) = self.affine(cx);
        functional::gated_norm(cx, s, q, gate, &weight, bias.as_ref(), EPS)
    }

    /// Returns the scale, and the shift for LayerNorm.
    fn affine(&self, cx: &Cx) -> (Tensor, Option<Tensor>) {
        match *self {
            Self::Layer { weight, bias } => (cx.param(weight), Some(cx.param(bias))),
            Self::Rms { weight } => (cx.param(weight), None),
        }
    }

    /// (…, D) → (…, D).
    pub fn forward(&self, cx: &Cx, x: &Tensor) -> Result<Tensor, OpError> {
        let (weight, bias) = self.affine(cx);
        match bias {
            Some(bias) => functional::layer_norm(cx, x, &weight, &bias, EPS),
            None => functional::rms_norm(cx, x, &weight, EPS),
        }
    }
}
