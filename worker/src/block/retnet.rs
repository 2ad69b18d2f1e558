//! RetNet block: retention, then feed-forward, each behind a norm and a residual connection.

use super::Regularise;
use crate::{
    autograd::{Cx, Tensor},
    error::OpError,
    functional::Dir,
    layer::{FeedForward, Normalise, Retention, Width},
    params::ParamBuilder,
};

/// x ← x + MSR(norm x);  x ← x + SwiGLU(norm x).
#[derive(Debug, Clone)]
pub struct RetNetBlock {
    norm_retention: Normalise,
    retention: Retention,
    norm_feed: Normalise,
    feed: FeedForward,
    regularise: Regularise,
}

impl RetNetBlock {
    /// A block that looks in `direction`.
    pub fn new(pb: &mut ParamBuilder, name: &str, width: Width, direction: Dir, regularise: Regularise) -> Self {
        pb.scoped(name, |pb| Self {
            norm_retention: Normalise::new(pb, "norm_retention", width.norm, width.model),
            retention: Retention::new(pb, "retention", width, direction),
            norm_feed: Normalise::new(pb, "norm_feed", width.norm, width.model),
            feed: FeedForward::new(pb, "feed", width.model, width.hidden),
            regularise,
        })
    }

    /// (B, N, D) → (B, N, D), and the state (B, H, D/H) of a causal block.
    ///
    /// # Errors
    /// As [`Retention::forward`].
    pub fn forward(&self, cx: &Cx, x: &Tensor, state: Option<&Tensor>) -> Result<(Tensor, Option<Tensor>), OpError> {
        cx.part(|cx| {
            let (mixed, state) = self.retention.forward(cx, &self.norm_retention.forward(cx, x)?, state)?;
            let x = self.regularise.add(cx, x, &mixed)?;
            let fed = self.feed.forward(cx, &self.norm_feed.forward(cx, &x)?)?;
            Ok((self.regularise.add(cx, &x, &fed)?, state))
        })
    }
}
