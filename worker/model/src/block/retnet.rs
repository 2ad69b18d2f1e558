//! RetNet block: a token mixer, then a feed-forward, each behind a norm and with a residual connection.

use super::{Regularise, residual::Residual};
use crate::layer::{FeedForward, Mixing, Normalise, TokenMixer, Width};
use enn_core::{
    autograd::{Cx, Tensor},
    error::OpError,
    params::ParamBuilder,
};

/// x ← x + Mixer(norm x);  x ← x + SwiGLU(norm x).
#[derive(Debug, Clone)]
pub struct RetNetBlock {
    norm_mixer: Normalise,
    mixer: TokenMixer,
    norm_feed: Normalise,
    feed: FeedForward,
    regularise: Regularise,
}

impl RetNetBlock {
    /// Creates a block whose tokens are mixed by `mixing`; its parameters are named after the mixer.
    pub fn new(pb: &mut ParamBuilder, name: &str, width: Width, mixing: &Mixing, regularise: Regularise) -> Self {
        pb.scoped(name, |pb| Self {
            norm_mixer: Normalise::new(pb, &format!("norm_{}", mixing.mixer.parameter_name()), width.norm, width.model),
            mixer: mixing.layer(pb, width),
            norm_feed: Normalise::new(pb, "norm_feed", width.norm, width.model),
            feed: FeedForward::new(pb, "feed", width.model, width.hidden),
            regularise,
        })
    }

    /// Maps (B, N, D) to (B, N, D). A causal block also returns its state, where its mixer keeps one.
    pub fn forward(
        &self,
        cx: &Cx,
        x: &Residual,
        state: Option<&Tensor>,
    ) -> Result<(Residual, Option<Tensor>), OpError> {
        cx.part(|cx| {
            let (x, normed) = x.norm(cx, &self.norm_mixer)?;
            let (mixed, state) = self.mixer.forward(cx, &normed, state)?;
            let (x, normed) = self.regularise.add(cx, x, &mixed)?.norm(cx, &self.norm_feed)?;
            let fed = self.feed.forward(cx, &normed)?;
            Ok((self.regularise.add(cx, x, &fed)?.at_border(cx)?, state))
        })
    }
}
