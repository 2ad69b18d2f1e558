//! How a fuser joins the tokens of its children: concatenated in one list, or read one by one and added.

use super::perceiver::Sources;
use enn_common::config::forest::Reduction;
use enn_core::{
    autograd::{Cx, Tensor},
    error::OpError,
    functional,
    params::{Group, Init, ParamBuilder, ParamId},
};
use tch::{Device, Tensor as Raw};

/// Name, weight and number of tokens of one child.
#[derive(Debug, Clone, PartialEq)]
pub struct Child {
    pub name: String,
    /// Prior attention relative to the siblings; greater than 0.
    pub weight: f64,
    pub tokens: i64,
}

/// Returns log(wᵢ/Nᵢ) for each token of each child, (ΣN): the prior attention mass of a child is its weight, whatever
/// its token count.
///
/// Returns `None` for one child: a constant shift of all keys changes nothing.
pub fn key_bias(children: &[Child]) -> Option<Vec<f32>> {
    if children.len() < 2 {
        return None;
    }
    let bias = |child: &Child| (child.weight / child.tokens as f64).ln() as f32;
    Some(children.iter().flat_map(|child| std::iter::repeat_n(bias(child), child.tokens as usize)).collect())
}

/// Reduction over a fixed list of children.
#[derive(Debug)]
pub enum Join {
    /// Concatenates the tokens.
    Mean {
        /// Bias of each key, (ΣN) f32.
        key_bias: Option<Raw>,
    },
    /// Multiplies what each child adds by a learned factor (1), which begins at its share of all weights.
    Linear {
        /// One factor per child, in order.
        factors: Vec<ParamId>,
    },
}

impl Join {
    /// Creates a join. The factors of `Linear` are parameters of the children, so that their names do not change when a
    /// sibling joins or leaves.
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

    pub fn to_device(&mut self, device: Device) {
        if let Self::Mean { key_bias } = self {
            *key_bias = key_bias.take().map(|bias| bias.to_device(device));
        }
    }

    /// Prepares the tokens of the children for a Perceiver.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        block::{Perceiver, Regularise, perceiver::Rounds},
        layer::Width,
    };
    use enn_common::config::model::Norm;
    use tch::Kind;

    fn child(name: &str, tokens: i64, weight: f64) -> Child {
        Child { name: name.to_owned(), tokens, weight }
    }

    #[test]
    fn one_task_needs_no_bias() {
        assert_eq!(key_bias(&[child("a", 5, 2.0)]), None);
        let bias = key_bias(&[child("a", 2, 1.0), child("b", 1, 3.0)]).unwrap();
        assert_eq!(bias, [0.5_f32.ln(), 0.5_f32.ln(), 3.0_f32.ln()]);
    }

    #[test]
    fn doubling_the_tokens_of_a_task_changes_nothing() {
        let mut pb = ParamBuilder::new();
        let width = Width { model: 8, heads: 2, hidden: 16, norm: Norm::LayerNorm };
        let rounds = Rounds { latents: 3, rounds: 2, self_layers: 1 };
        let perceiver =
            Perceiver::new(&mut pb, "perceiver", width, rounds, Regularise { dropout: 0.0, drop_path: 0.0 });
        let params = pb.build(1, Device::Cpu).unwrap();
        let cx = Cx::eval(&params);
        tch::manual_seed(2);
        let a = Raw::randn([2, 4, 8], (Kind::Float, Device::Cpu));
        let b = Raw::randn([2, 5, 8], (Kind::Float, Device::Cpu));
        let read = |parts: &[&Raw], children: &[Child]| {
            let key_bias = Some(cx.constant(Raw::from_slice(&key_bias(children).unwrap())));
            let sources = Sources::Together { tokens: cx.input(Raw::cat(parts, 1)), key_bias };
            perceiver.forward(&cx, &sources).unwrap().raw().shallow_clone()
        };
        let once = read(&[&a, &b], &[child("a", 4, 1.0), child("b", 5, 2.0)]);
        let twice = read(&[&a, &b, &b], &[child("a", 4, 1.0), child("b", 10, 2.0)]);
        assert!((&once - twice).abs().max().double_value(&[]) < 1e-5);
        // Without the bias of the longer task the output changes, so the test is sensitive to it.
        let unweighted = read(&[&a, &b, &b], &[child("a", 4, 1.0), child("b", 10, 4.0)]);
        assert!((once - unweighted).abs().max().double_value(&[]) > 1e-4);
    }
}
