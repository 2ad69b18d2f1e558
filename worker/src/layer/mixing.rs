//! How tokens hear of each other: one of the mixers, behind one interface.

use super::{Dilated, Retention, TrueRetention, Width, dilated::Pattern};
use crate::{
    autograd::{Cx, Tensor},
    error::OpError,
    functional::Dir,
    params::ParamBuilder,
};
use enn_common::config::forest::Mixer;

/// What a block mixes its tokens by.
#[derive(Debug, Clone, PartialEq)]
pub struct Mixing {
    /// Which.
    pub mixer: Mixer,
    /// Which tokens a token hears of.
    pub direction: Dir,
    /// Of the dilated mixer.
    pub patterns: Vec<Pattern>,
}

/// A mixer's layer.
#[derive(Debug, Clone)]
pub enum TokenMixer {
    /// A decaying sum of values.
    Retention(Retention),
    /// A decaying sum of outer products.
    TrueRetention(TrueRetention),
    /// Attention in segments.
    Dilated(Dilated),
}

impl Mixing {
    /// Retention in `direction`.
    pub fn retention(direction: Dir) -> Self {
        Self { mixer: Mixer::Retention, direction, patterns: Vec::new() }
    }

    pub fn layer(&self, pb: &mut ParamBuilder, width: Width) -> TokenMixer {
        let name = self.mixer.name();
        let direction = self.direction;
        match self.mixer {
            Mixer::Retention => TokenMixer::Retention(Retention::new(pb, name, width, direction)),
            Mixer::TrueRetention => TokenMixer::TrueRetention(TrueRetention::new(pb, name, width, direction)),
            Mixer::Dilated => TokenMixer::Dilated(Dilated::new(pb, name, width, direction, &self.patterns)),
        }
    }
}

impl TokenMixer {
    /// (B, N, D) → (B, N, D), and the state after the last token where the layer is causal and keeps one.
    ///
    /// # Errors
    /// Those of the layer.
    pub fn forward(&self, cx: &Cx, x: &Tensor, state: Option<&Tensor>) -> Result<(Tensor, Option<Tensor>), OpError> {
        match self {
            Self::Retention(layer) => layer.forward(cx, x, state),
            Self::TrueRetention(layer) => layer.forward(cx, x, state),
            Self::Dilated(layer) => Ok((layer.forward(cx, x)?, None)),
        }
    }
}
