//! How a fuser joins its children's tokens: all in one list, or each read by itself and added.

use super::perceiver::Sources;
use crate::{
    autograd::{Cx, Tensor},
    error::OpError,
    functional,
    params::{Group, Init, ParamBuilder, ParamId},
};
use enn_common::config::forest::Reduction;
use tch::{Device, Tensor as Raw};

/// A child: its name, weight and tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Child {
    /// Task.
    pub name: String,
    /// Share of the prior attention, relative to its siblings; > 0.
    pub weight: f64,
    /// Tokens N.
    pub tokens: i64,
}

/// log(wᵢ/Nᵢ) for each token of each child, (ΣN): the prior attention mass of a child is its weight, whatever its token count.
///
/// `None` when there is one child: a constant shift of all keys changes nothing.
pub fn key_bias(children: &[Child]) -> Option<Vec<f32>> {
    if children.len() < 2 {
        return None;
    }
    let bias = |child: &Child| (child.weight / child.tokens as f64).ln() as f32;
    Some(children.iter().flat_map(|child| std::iter::repeat_n(bias(child), child.tokens as usize)).collect())
}

/// A reduction over fixed children.
#[derive(Debug)]
pub enum Join {
    /// One list of tokens.
    Mean {
        /// (ΣN) f32.
        key_bias: Option<Raw>,
    },
    /// One factor (1) per child, which begins at its share of all weights.
    Linear {
        /// In the order of the children.
        factors: Vec<ParamId>,
    },
}

impl Join {
    /// The factors of `Linear` are parameters of the children, so that they keep their names whoever joins or leaves.
    pub fn new(pb: &mut ParamBuilder, reduction: Reduction, children: &[Child]) -> Self {
        match reduction {
            Reduction::Mean => Self::Mean { key_bias: key_bias(children).map(|bias| Raw::from_slice(&bias)) },
            Reduction::Linear => {
                let sum: f64 = children.iter().map(|child| child.weight).sum();
                let factor = |child: &Child| {
                    let start = Init::Value(vec![(child.weight / sum) as f32]);
                    pb.scoped(&child.name, |pb| pb.param("factor", &[1], start, Group::NoDecay))
                };
                Self::Linear { factors: children.iter().map(factor).collect() }
            }
        }
    }

    /// Moves the key bias.
    pub fn to_device(&mut self, device: Device) {
        if let Self::Mean { key_bias } = self {
            *key_bias = key_bias.take().map(|bias| bias.to_device(device));
        }
    }

    /// The children's tokens as a Perceiver reads them.
    ///
    /// # Errors
    /// When widths or batches differ.
    pub fn sources(&self, cx: &Cx, tokens: Vec<Tensor>) -> Result<Sources, OpError> {
        match self {
            Self::Mean { key_bias } => {
                let key_bias = key_bias.as_ref().map(|raw| cx.constant(raw.shallow_clone()));
                let tokens = match tokens.as_slice() {
                    [only] => only.clone(),
                    several => functional::cat(cx, &several.iter().collect::<Vec<_>>(), 1)?,
                };
                Ok(Sources::Together { tokens, key_bias })
            }
            Self::Linear { factors } => {
                Ok(Sources::Apart(factors.iter().map(|id| cx.param(*id)).zip(tokens).collect()))
            }
        }
    }
}
