//! Large outputs a tile of the cells at a time: what a loss needs in between, several times its operands, is that of one tile.
//!
//! ```text
//! z, targets, … (B, O) ─ split ─► tile ─► Σ, let go ─┐
//!                             └─► tile ─► Σ, let go ─┴─► Σ        backward: each tile again, then its gradient
//! ```
//! **Invariant:** value and gradient are those of all cells at once, up to the rounding of a sum. The tiles depend on shapes alone, so
//! that all ranks record the same.

use super::{Objective, Targets};
use crate::{
    autograd::{Cx, Tensor},
    error::OpError,
    functional,
};
use enn_common::config::train::Loss;

/// Values (rows × cells) of a tile, about: 4 MiB of f32.
pub(super) const TILE: i64 = 1 << 20;
/// Outputs of fewer tiles than this are computed at once: memory is no concern there.
const TILES_MIN: i64 = 4;
/// Tiles at most, however large they are then: each costs a few dozen records.
const TILES_MAX: i64 = 128;

impl Objective {
    /// Cells of each tile in which the loss of so many rows is computed; of one tile where it is computed at once. A softmax is over all
    /// cells of a row.
    pub fn tiles(&self, rows: i64, cells: i64) -> Vec<i64> {
        let count = rows.saturating_mul(cells) / self.tile;
        if count < TILES_MIN || self.loss == Loss::CrossEntropy {
            return vec![cells];
        }
        let width = cells.cast_unsigned().div_ceil(count.min(TILES_MAX).cast_unsigned());
        (0..cells).step_by(width as usize).map(|start| (cells - start).min(width.cast_signed())).collect()
    }

    /// Σ over the valid cells by weight.
    pub(super) fn sum(
        &self,
        cx: &Cx,
        (z, channels): (&Tensor, Option<&Tensor>),
        targets: &Targets,
        weight: Option<&Tensor>,
    ) -> Result<Tensor, OpError> {
        let sizes = self.tiles(z.dim(0), z.dim(-1));
        if sizes.len() == 1 {
            return self.element(cx, (z, channels), targets, weight);
        }
        let cut = |whole: &Tensor| functional::split(cx, whole, &sizes, -1);
        let z = cut(z)?;
        let target = cut(&targets.z)?;
        let valid = cut(&targets.valid)?;
        let channels = channels.map(cut).transpose()?;
        let weight = weight.map(cut).transpose()?;
        let tile = |at: usize| {
            let targets = Targets { z: target[at].clone(), valid: valid[at].clone(), weight: None };
            let channels = channels.as_ref().map(|all| &all[at]);
            let weight = weight.as_ref().map(|all| &all[at]);
            cx.again(|cx| self.element(cx, (&z[at], channels), &targets, weight))
        };
        (1..sizes.len()).try_fold(tile(0)?, |sum, at| functional::add(cx, &sum, &tile(at)?))
    }
}
