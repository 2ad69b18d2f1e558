//! The two output heads: a low-rank base over the whole grid, and a refinement per patch.

use crate::layer::{Linear, Normalise, Width};
use enn_core::{
    autograd::{Cx, Tensor},
    error::OpError,
    functional,
    params::{Group, Init, ParamBuilder, ParamId},
};

/// a = V u(norm z̄) + b [+ W [x, c] / F']: rank-R factors, plus an optional linear branch from the features and the crosses of
/// categories.
///
/// z̄ is the mean latent (B, D); u is Linear(D → R); V is (O, R), its columns begin as principal components of the training
/// targets; W is (O, F' + C) and begins as ridge regression. With the branch u begins at zero, so that a begins at the regression.
///
/// W is stored multiplied by F': under Adam every stored number moves by the learning rate, and a row of W, summed over
/// F' features, must not move the output further per step than the rest of the model does. Otherwise a few steps would
/// undo the regression.
#[derive(Debug, Clone)]
pub struct BaseHead {
    norm: Normalise,
    scores: Linear,
    factors: ParamId,
    bias: ParamId,
    linear: Option<(ParamId, f64)>,
    channels: Option<(ParamId, ParamId, i64)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BaseSizes {
    /// Number of output cells O.
    pub cells: i64,
    pub rank: i64,
    /// Numbers of features F' and of crosses C in the linear branch; `None` disables it.
    pub linear: Option<(i64, i64)>,
    /// Numbers P per cell besides the location.
    pub channels: i64,
}

impl BaseHead {
    /// Creates a base head; `Model::initialise_from_data` sets V, b and W.
    pub fn new(pb: &mut ParamBuilder, name: &str, width: Width, sizes: BaseSizes) -> Self {
        let BaseSizes { cells, rank, linear, channels } = sizes;
        pb.scoped(name, |pb| Self {
            norm: Normalise::new(pb, "norm", width.norm, width.model),
            scores: match linear {
                Some(_) => Linear::zeroed(pb, "scores", width.model, rank),
                None => Linear::biased(pb, "scores", width.model, rank),
            },
            factors: pb.param(
                "factors",
                &[cells, rank],
                Init::Normal { std: 1.0 / (rank as f64).sqrt() },
                Group::Decay,
            ),
            bias: pb.param("bias", &[cells], Init::Zeros, Group::NoDecay),
            linear: linear.map(|(features, crosses)| {
                let weight = pb.param("linear", &[cells, features + crosses], Init::Zeros, Group::Decay);
                (weight, 1.0 / (features as f64).sqrt())
            }),
            channels: (channels > 0).then(|| {
                let weight = pb.param("channels.weight", &[channels * cells, rank], Init::Zeros, Group::Decay);
                (weight, pb.param("channels.bias", &[channels, cells], Init::Zeros, Group::NoDecay), cells)
            }),
        })
    }

    /// Maps the mean latent (B, D), and features with crosses (B, F' + C) divided by √F', to locations (B, O) and
    /// channels (B, P, O).
    pub fn forward(&self, cx: &Cx, pooled: &Tensor, features: &Tensor) -> Result<(Tensor, Option<Tensor>), OpError> {
        let _scope = cx.scope("base");
        let scores = self.scores.forward(cx, &self.norm.forward(cx, pooled)?)?;
        let mut base = functional::linear(cx, &scores, &cx.param(self.factors), Some(&cx.param(self.bias)))?;
        if let Some((weight, scale)) = self.linear {
            let direct = functional::linear(cx, features, &cx.param(weight), None)?;
            base = functional::add(cx, &base, &functional::scale(cx, &direct, scale)?)?;
        }
        let channels = self.channels.map(|(weight, bias, cells)| {
            let flat = functional::linear(cx, &scores, &cx.param(weight), None)?;
            let all = functional::reshape(cx, &flat, &[pooled.dim(0), flat.dim(-1) / cells.max(1), cells])?;
            functional::add(cx, &all, &cx.param(bias))
        });
        Ok((base, channels.transpose()?))
    }

    /// Returns the bias of the channels (P, O).
    pub fn channel_bias(&self) -> Option<ParamId> {
        self.channels.map(|(_, bias, _)| bias)
    }

    /// Returns V, of shape (O, R).
    pub fn factors(&self) -> ParamId {
        self.factors
    }

    /// Returns b, of shape (O).
    pub fn bias(&self) -> ParamId {
        self.bias
    }

    /// Returns W · F' of the linear branch, of shape (O, F' + C).
    pub fn linear(&self) -> Option<ParamId> {
        self.linear.map(|(id, _)| id)
    }
}

/// Maps grid tokens (B, G, D) to one correction per cell of each patch (B, G, patch volume), and to as many per
/// channel. All corrections begin at zero.
#[derive(Debug, Clone)]
pub struct RefineHead {
    out: Linear,
    channels: Vec<Linear>,
}

impl RefineHead {
    /// Creates a head for patches of `patch_volume` cells with `channels` numbers besides the location.
    pub fn new(pb: &mut ParamBuilder, name: &str, width: Width, patch_volume: i64, channels: i64) -> Self {
        pb.scoped(name, |pb| Self {
            out: Linear::zeroed(pb, "out", width.model, patch_volume),
            channels: (0..channels)
                .map(|channel| Linear::zeroed(pb, &format!("channel_{channel}"), width.model, patch_volume))
                .collect(),
        })
    }

    /// (B, G, D) → (B, G, patch volume) for each channel.
    pub fn channels(&self, cx: &Cx, tokens: &Tensor) -> Result<Vec<Tensor>, OpError> {
        let _scope = cx.scope("refine");
        self.channels.iter().map(|channel| channel.forward(cx, tokens)).collect()
    }

    /// (B, G, D) → (B, G, patch volume).
    pub fn forward(&self, cx: &Cx, tokens: &Tensor) -> Result<Tensor, OpError> {
        let _scope = cx.scope("refine");
        self.out.forward(cx, tokens)
    }
}
