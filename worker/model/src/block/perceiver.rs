//! Perceiver: a fixed number of latents reads any number of tokens by cross-attention.

use super::{Regularise, residual::Residual};
use crate::layer::{Attention, FeedForward, Normalise, Width};
use enn_core::{
    autograd::{Cx, Tensor},
    error::OpError,
    functional,
    params::{Group, Init, ParamBuilder, ParamId},
};

/// Standard deviation of the latents at initialisation.
const LATENT_STD: f64 = 0.02;

/// q ← q + Attention(norm q, norm k; bias);  q ← q + SwiGLU(norm q).
#[derive(Debug, Clone)]
pub struct CrossBlock {
    norm_query: Normalise,
    norm_key: Normalise,
    attention: Attention,
    norm_feed: Normalise,
    feed: FeedForward,
    regularise: Regularise,
}

impl CrossBlock {
    pub fn new(pb: &mut ParamBuilder, name: &str, width: Width, regularise: Regularise) -> Self {
        pb.scoped(name, |pb| Self {
            norm_query: Normalise::new(pb, "norm_query", width.norm, width.model),
            norm_key: Normalise::new(pb, "norm_key", width.norm, width.model),
            attention: Attention::new(pb, "attention", width),
            norm_feed: Normalise::new(pb, "norm_feed", width.norm, width.model),
            feed: FeedForward::new(pb, "feed", width.model, width.hidden),
            regularise,
        })
    }

    /// Maps queries (B or 1, M, D), keys (B, N, D) and a bias (N) to (B, M, D).
    pub fn forward(
        &self,
        cx: &Cx,
        queries: &Residual,
        keys: &Tensor,
        key_bias: Option<&Tensor>,
    ) -> Result<Residual, OpError> {
        cx.part(|cx| {
            let (x, q) = queries.norm(cx, &self.norm_query)?;
            let k = self.norm_key.forward(cx, keys)?;
            let read = self.attention.forward(cx, &q, &k, key_bias)?;
            let (x, normed) = self.regularise.add(cx, x, &read)?.norm(cx, &self.norm_feed)?;
            let fed = self.feed.forward(cx, &normed)?;
            self.regularise.add(cx, x, &fed)?.at_border(cx)
        })
    }
}

/// x ← x + Attention(norm x, norm x);  x ← x + SwiGLU(norm x).
#[derive(Debug, Clone)]
pub struct SelfBlock {
    norm: Normalise,
    attention: Attention,
    norm_feed: Normalise,
    feed: FeedForward,
    regularise: Regularise,
}

impl SelfBlock {
    pub fn new(pb: &mut ParamBuilder, name: &str, width: Width, regularise: Regularise) -> Self {
        pb.scoped(name, |pb| Self {
            norm: Normalise::new(pb, "norm", width.norm, width.model),
            attention: Attention::new(pb, "attention", width),
            norm_feed: Normalise::new(pb, "norm_feed", width.norm, width.model),
            feed: FeedForward::new(pb, "feed", width.model, width.hidden),
            regularise,
        })
    }

    /// (B, N, D) → (B, N, D).
    pub fn forward(&self, cx: &Cx, x: &Residual) -> Result<Residual, OpError> {
        cx.part(|cx| {
            let (x, normed) = x.norm(cx, &self.norm)?;
            let mixed = self.attention.forward(cx, &normed, &normed, None)?;
            let (x, normed) = self.regularise.add(cx, x, &mixed)?.norm(cx, &self.norm_feed)?;
            let fed = self.feed.forward(cx, &normed)?;
            self.regularise.add(cx, x, &fed)?.at_border(cx)
        })
    }
}

/// K learned latents; rounds × (one cross block, then self blocks); norm.
#[derive(Debug, Clone)]
pub struct Perceiver {
    latents: ParamId,
    rounds: Vec<(CrossBlock, Vec<SelfBlock>)>,
    norm: Normalise,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rounds {
    /// Number of latents K.
    pub latents: i64,
    pub rounds: usize,
    /// Number of self-attention blocks per round.
    pub self_layers: usize,
}

#[derive(Debug)]
pub enum Sources {
    /// One list of tokens (B, N, D), read at once.
    Together {
        tokens: Tensor,
        /// Bias of each key, (N).
        key_bias: Option<Tensor>,
    },
    /// Several lists, read one by one: z ← z + Σ factor · (read − z). Each entry is a factor (1) and tokens.
    Apart(Vec<(Tensor, Tensor)>),
}

impl Perceiver {
    /// Creates a Perceiver. Latents begin as N(0, 0.02²); the rate of stochastic depth grows in the order of execution.
    pub fn new(pb: &mut ParamBuilder, name: &str, width: Width, sizes: Rounds, regularise: Regularise) -> Self {
        let per_round = 1 + sizes.self_layers;
        let count = sizes.rounds * per_round;
        pb.scoped(name, |pb| {
            let latents =
                pb.param("latents", &[sizes.latents, width.model], Init::Normal { std: LATENT_STD }, Group::NoDecay);
            let rounds = (0..sizes.rounds)
                .map(|r| {
                    let rate = |i: usize| regularise.at_depth(r * per_round + i, count);
                    let cross = CrossBlock::new(pb, &format!("round_{r}.cross"), width, rate(0));
                    let selves = (0..sizes.self_layers)
                        .map(|i| SelfBlock::new(pb, &format!("round_{r}.self_{i}"), width, rate(1 + i)))
                        .collect();
                    (cross, selves)
                })
                .collect();
            Self { latents, rounds, norm: Normalise::new(pb, "norm", width.norm, width.model) }
        })
    }

    /// Reads `sources` into latents (B, K, D).
    pub fn forward(&self, cx: &Cx, sources: &Sources) -> Result<Tensor, OpError> {
        let _scope = cx.scope("perceiver");
        let mut z = Residual::from(functional::unsqueeze(cx, &cx.param(self.latents), 0)?);
        for (cross, selves) in &self.rounds {
            z = match sources {
                Sources::Together { tokens, key_bias } => cross.forward(cx, &z, tokens, key_bias.as_ref())?,
                Sources::Apart(sources) => {
                    let before = z.sum(cx)?;
                    let mut sum = before.clone();
                    for (factor, tokens) in sources {
                        let after = cross.forward(cx, &before.clone().into(), tokens, None)?.sum(cx)?;
                        let read = functional::sub(cx, &after, &before)?;
                        sum = functional::add(cx, &sum, &functional::mul(cx, factor, &read)?)?;
                    }
                    sum.into()
                }
            };
            for block in selves {
                z = block.forward(cx, &z)?;
            }
        }
        z.last_norm(cx, &self.norm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use enn_common::config::model::Norm;

    #[test]
    fn stochastic_depth_grows_in_the_order_of_execution() {
        let width = Width { model: 8, heads: 2, hidden: 8, norm: Norm::LayerNorm };
        let regularise = Regularise { dropout: 0.0, drop_path: 0.5 };
        let sizes = Rounds { latents: 3, rounds: 2, self_layers: 2 };
        let perceiver = Perceiver::new(&mut ParamBuilder::new(), "perceiver", width, sizes, regularise);
        let executed = |(cross, selves): &(CrossBlock, Vec<SelfBlock>)| {
            let selves = selves.iter().map(|block| block.regularise.drop_path);
            std::iter::once(cross.regularise.drop_path).chain(selves).collect::<Vec<f64>>()
        };
        let rates: Vec<f64> = perceiver.rounds.iter().flat_map(executed).collect();
        assert!(
            rates.iter().zip([0.0, 0.1, 0.2, 0.3, 0.4, 0.5]).all(|(rate, expected)| (rate - expected).abs() < 1e-12),
            "{rates:?}"
        );
    }
}
