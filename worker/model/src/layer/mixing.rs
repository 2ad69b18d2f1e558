//! Token mixers behind one interface.

use super::{Dilated, GatedEma, Retention, Width, dilated::Pattern};
use enn_common::config::forest::Mixer;
use enn_core::{
    autograd::{Cx, Tensor},
    error::OpError,
    functional::Dir,
    params::ParamBuilder,
};

/// Configuration of the token mixer of a block.
#[derive(Debug, Clone, PartialEq)]
pub struct Mixing {
    pub mixer: Mixer,
    /// Tokens that a token reads: earlier ones only, or all.
    pub direction: Dir,
    /// Segment patterns of the dilated mixer; other mixers ignore them.
    pub patterns: Vec<Pattern>,
}

/// The layer of one of the mixers.
#[derive(Debug, Clone)]
pub enum TokenMixer {
    /// A decaying sum of values, gated by queries.
    GatedEma(GatedEma),
    /// A decaying sum of outer products of keys and values, as in RetNet.
    Retention(Retention),
    /// Dilated attention in segments.
    Dilated(Dilated),
}

impl Mixing {
    /// Returns the configuration of a gated exponential moving average.
    pub fn gated_ema(direction: Dir) -> Self {
        Self { mixer: Mixer::GatedEma, direction, patterns: Vec::new() }
    }

    pub fn layer(&self, pb: &mut ParamBuilder, width: Width) -> TokenMixer {
        let name = self.mixer.parameter_name();
        let direction = self.direction;
        match self.mixer {
            Mixer::GatedEma => TokenMixer::GatedEma(GatedEma::new(pb, name, width, direction)),
            Mixer::Retention => TokenMixer::Retention(Retention::new(pb, name, width, direction)),
            Mixer::Dilated => TokenMixer::Dilated(Dilated::new(pb, name, width, direction, &self.patterns)),
        }
    }
}

impl TokenMixer {
    /// Maps (B, N, D) to (B, N, D). A causal mixer that keeps a state also returns the state after the last token.
    pub fn forward(&self, cx: &Cx, x: &Tensor, state: Option<&Tensor>) -> Result<(Tensor, Option<Tensor>), OpError> {
        match self {
            Self::GatedEma(layer) => layer.forward(cx, x, state),
            Self::Retention(layer) => layer.forward(cx, x, state),
            Self::Dilated(layer) => Ok((layer.forward(cx, x)?, None)),
        }
    }
}
