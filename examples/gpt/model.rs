//! A whole user-defined model: GPT-2's shape, where the token table is both embedding and output head.

use super::layer::{Block, Norm, SPREAD, Size, Stream};
use enn_worker::{
    autograd::{Cx, Tensor},
    error::OpError,
    functional as f,
    params::{Group, Init, ParamBuilder, ParamId},
    tch,
};

/// Sizes of the model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct GptSize {
    /// Size of the vocabulary.
    pub(crate) vocabulary: i64,
    /// Longest text in tokens.
    pub(crate) context: i64,
    /// Width of a token.
    pub(crate) width: i64,
    /// Number of blocks.
    pub(crate) depth: i64,
    /// Number of attention heads.
    pub(crate) heads: i64,
    /// Dropout rate.
    pub(crate) dropout: f64,
}

impl GptSize {
    /// Bytes, for a laptop: 0.8 M parameters.
    pub(crate) const TINY: Self = Self { vocabulary: 256, context: 64, width: 128, depth: 4, heads: 4, dropout: 0.0 };
    /// Bytes, for a GPU or patience: 10.8 M parameters.
    pub(crate) const SMALL: Self = Self { vocabulary: 256, context: 256, width: 384, depth: 6, heads: 6, dropout: 0.0 };
    /// GPT-2 small with its vocabulary rounded up to a multiple of 64: 124.5 M parameters.
    pub(crate) const GPT124M: Self =
        Self { vocabulary: 50304, context: 1024, width: 768, depth: 12, heads: 12, dropout: 0.0 };
}

/// The model: ids of parameters, no tensors.
pub(crate) struct Gpt {
    size: GptSize,
    tokens: ParamId,
    positions: ParamId,
    blocks: Vec<Block>,
    norm: Norm,
}

impl Gpt {
    /// Declares all parameters.
    pub(crate) fn new(pb: &mut ParamBuilder, size: GptSize) -> Self {
        let GptSize { width, heads, dropout, .. } = size;
        // Every block adds twice to the stream: this scale keeps its standard deviation that of one.
        let out_std = SPREAD / (2.0 * size.depth as f64).sqrt();
        let block = Size { width, heads, out_std, dropout };
        let normal = || Init::Normal { std: SPREAD };
        Self {
            size,
            tokens: pb.param("tokens", &[size.vocabulary, width], normal(), Group::Decay),
            positions: pb.param("positions", &[size.context, width], normal(), Group::Decay),
            blocks: (0..size.depth).map(|i| Block::new(pb, &format!("blocks.{i}"), block)).collect(),
            norm: Norm::new(pb, "norm", width),
        }
    }

    pub(crate) fn size(&self) -> GptSize {
        self.size
    }

    /// Maps ids (B, N) of 64 bits → logits (B, N, vocabulary).
    pub(crate) fn forward(&self, cx: &Cx<'_>, ids: &Tensor) -> Result<Tensor, OpError> {
        let places = cx.constant(tch::Tensor::arange(ids.dim(1), (tch::Kind::Int64, ids.device())));
        let table = cx.param(self.tokens);
        let tokens = f::embedding(cx, &table, ids)?;
        let x = f::add(cx, &tokens, &f::embedding(cx, &cx.param(self.positions), &places)?)?;
        let mut stream = Stream { x: f::dropout(cx, &x, self.size.dropout)?, branch: None };
        for (i, block) in self.blocks.iter().enumerate() {
            let _place = cx.scope(&format!("blocks.{i}"));
            stream = block.forward(cx, stream)?;
        }
        let _place = cx.scope("head");
        f::linear(cx, &self.norm.join(cx, stream)?.1, &table, None)
    }

    /// Returns the sum over tokens of −log p(next token), for ids and next ids (B, N).
    pub(crate) fn loss(&self, cx: &Cx<'_>, ids: &Tensor, next: &Tensor) -> Result<Tensor, OpError> {
        let logits = self.forward(cx, ids)?;
        f::cross_entropy(cx, &logits, next, NOTHING)
    }
}

/// The id of positions that have no next token.
pub(crate) const NOTHING: i64 = -100;
