//! The collector: a cross block in which every patch of the output grid reads the latents, then blocks along each axis
//! of the grid.

use super::{Grid, Regularise, RetNetBlock, perceiver::CrossBlock, residual::Residual};
use crate::layer::{Mixing, Normalise, Width};
use enn_core::{
    autograd::{Cx, Tensor},
    error::OpError,
    functional::{self, Dir},
    params::{Group, Init, ParamBuilder, ParamId},
};

/// Standard deviation of the axis embeddings at initialisation.
const AXIS_STD: f64 = 0.02;

/// Maps latents (B, K, D) to grid tokens (B, G, D). The number of parameters depends on the sum of the axes' lengths,
/// not on their product.
#[derive(Debug, Clone)]
pub struct Collector {
    grid: Grid,
    /// One table (patches of the axis, D) per axis.
    axes: Vec<ParamId>,
    cross: CrossBlock,
    /// Axis that each block runs along.
    along: Vec<(usize, RetNetBlock)>,
    norm: Normalise,
    width: i64,
}

impl Collector {
    /// Creates `depth` blocks that run along the axes in rotation. Axes of one patch are skipped; a grid of one patch
    /// has no blocks.
    ///
    /// All blocks are bidirectional: the whole grid is predicted at once, so no cell is in another's future.
    pub fn new(
        pb: &mut ParamBuilder,
        name: &str,
        grid: Grid,
        width: Width,
        depth: usize,
        regularise: Regularise,
    ) -> Self {
        let turns: Vec<usize> = (0..grid.rank()).filter(|&axis| grid.counts()[axis] > 1).collect();
        let depth = if turns.is_empty() { 0 } else { depth };
        let mixing = Mixing::gated_ema(Dir::Bidirectional);
        pb.scoped(name, |pb| Self {
            axes: (0_usize..)
                .zip(grid.counts())
                .map(|(i, &count)| {
                    let init = Init::Normal { std: AXIS_STD };
                    pb.param(&format!("axis_{i}"), &[count, width.model], init, Group::NoDecay)
                })
                .collect(),
            cross: CrossBlock::new(pb, "cross", width, regularise.at_depth(0, depth + 1)),
            along: (0..depth)
                .map(|i| {
                    let rate = regularise.at_depth(i + 1, depth + 1);
                    let block = RetNetBlock::new(pb, &format!("block_{i}"), width, &mixing, rate);
                    (turns[i % turns.len()], block)
                })
                .collect(),
            norm: Normalise::new(pb, "norm", width.norm, width.model),
            width: width.model,
            grid,
        })
    }

    /// Maps latents (B, K, D) to grid tokens (B, G, D).
    pub fn forward(&self, cx: &Cx, latents: &Tensor) -> Result<Tensor, OpError> {
        let _scope = cx.scope("collector");
        let queries = self.queries(cx)?;
        let mut tokens = self.cross.forward(cx, &queries.into(), latents, None)?;
        for (axis, block) in &self.along {
            tokens = self.along_axis(cx, &tokens, *axis, block)?;
        }
        tokens.last_norm(cx, &self.norm)
    }

    /// Returns the sum of the axis embeddings, (1, G, D).
    fn queries(&self, cx: &Cx) -> Result<Tensor, OpError> {
        let mut sum = self.axis_table(cx, 0)?;
        for axis in 1..self.grid.rank() {
            sum = functional::add(cx, &sum, &self.axis_table(cx, axis)?)?;
        }
        functional::reshape(cx, &sum, &[1, self.grid.tokens(), self.width])
    }

    /// Returns the embedding of one axis, shaped to broadcast over the others: (1, …, patches, …, 1, D).
    fn axis_table(&self, cx: &Cx, axis: usize) -> Result<Tensor, OpError> {
        let rank = self.grid.rank();
        let mut shape = vec![1; rank + 1];
        shape[axis] = self.grid.counts()[axis];
        shape[rank] = self.width;
        functional::reshape(cx, &cx.param(self.axes[axis]), &shape)
    }

    /// Runs a block along one axis of the grid, the others being part of the batch.
    fn along_axis(&self, cx: &Cx, tokens: &Residual, axis: usize, block: &RetNetBlock) -> Result<Residual, OpError> {
        let counts = self.grid.counts();
        let batch = tokens.batch();
        let d = self.width;
        let before: i64 = counts[..axis].iter().product();
        let after: i64 = counts[axis + 1..].iter().product();
        let n = counts[axis];
        if after == 1 {
            let rows = tokens.map(|x| functional::reshape(cx, x, &[batch * before, n, d]))?;
            let mixed = block.forward(cx, &rows, None)?.0;
            return mixed.map(|x| functional::reshape(cx, x, &[batch, self.grid.tokens(), d]));
        }
        let split = functional::reshape(cx, &tokens.sum(cx)?, &[batch * before, n, after, d])?;
        let rows = functional::reshape(cx, &functional::transpose(cx, &split, 1, 2)?, &[batch * before * after, n, d])?;
        let mixed = block.forward(cx, &rows.into(), None)?.0.sum(cx)?;
        let split = functional::reshape(cx, &mixed, &[batch * before, after, n, d])?;
        let turned = functional::transpose(cx, &split, 1, 2)?;
        Ok(functional::reshape(cx, &turned, &[batch, self.grid.tokens(), d])?.into())
    }
}
