//! A template turns the feature vector into tokens of one task.

use super::{Regularise, RetNetBlock, fuser::Task};
use crate::{
    autograd::{Cx, Tensor},
    error::OpError,
    functional,
    layer::{Linear, Normalise, Width},
    params::ParamBuilder,
};

/// Tokeniser Linear (F' → N·D) → depth × RetNet block → norm.
#[derive(Debug, Clone)]
pub struct Template {
    name: String,
    tokeniser: Linear,
    blocks: Vec<RetNetBlock>,
    norm: Normalise,
    tokens: i64,
    width: i64,
}

impl Template {
    /// The template of `task` over `features` inputs.
    pub fn new(pb: &mut ParamBuilder, task: &Task, features: i64, width: Width, regularise: Regularise) -> Self {
        pb.scoped(&task.name, |pb| Self {
            name: task.name.clone(),
            tokeniser: Linear::wide(pb, "tokeniser", features, task.tokens * width.model),
            blocks: (0..task.depth)
                .map(|i| {
                    let regularise = regularise.at_depth(i, task.depth);
                    RetNetBlock::new(pb, &format!("block_{i}"), width, task.direction, regularise)
                })
                .collect(),
            norm: Normalise::new(pb, "norm", width.norm, width.model),
            tokens: task.tokens,
            width: width.model,
        })
    }

    /// Features (B, F') divided by √F' → tokens (B, N, D).
    ///
    /// # Errors
    /// When `x` is not (B, F').
    pub fn forward(&self, cx: &Cx, x: &Tensor) -> Result<Tensor, OpError> {
        let _scope = cx.scope(&self.name);
        let tokens = self.tokeniser.forward(cx, x)?;
        let mut tokens = functional::reshape(cx, &tokens, &[x.dim(0), self.tokens, self.width])?;
        for block in &self.blocks {
            tokens = block.forward(cx, &tokens, None)?.0;
        }
        self.norm.forward(cx, &tokens)
    }
}
