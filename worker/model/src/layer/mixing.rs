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
    /// Retention without keys: a decaying sum of values.
    GatedEma(GatedEma),
    /// Gated exponential moving average: a decaying sum of values.
    Retention(Retention),
    /// Dilated attention in segments.
    Dilated(Dilated),
}

impl Mixing {
    /// Returns the configuration of a retention mixer.
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
    /// Returns the configuration of a gated exponential moving average.
    ///
    /// # Errors
    /// Errors of the layer.
    pub fn forward(&self, cx: &Cx, x: &Tensor, state: Option<&Tensor>) -> Result<(Tensor, Option<Tensor>), OpError> {
        match self {
            Self::GatedEma(layer) => layer.forward(cx, x, state),
            Self::Retention(layer) => layer.forward(cx, x, state),
            Self::Dilated(layer) => Ok((layer.forward(cx, x)?, None)),
        }
    }
}
