//! Computes the loss of large outputs one tile of cells at a time, so that its intermediate values, several times its
//! operands, are those of one tile.
//!
//! ```text
//! z, targets, … (B, O) ─ split ─► tile ─► Σ, freed ──┐
//!                             └─► tile ─► Σ, freed ──┴─► Σ        backward: each tile again, then its gradient
//! ```
//! **Invariant:** value and gradient equal those of all cells at once, up to the rounding of a sum. The tiles depend on
//! shapes only, so that all ranks record the same program.

use super::{Objective, Targets};
use enn_common::config::train::Loss;
use enn_core::{
    autograd::{Cx, Tensor},
    error::OpError,
    functional,
};

/// Minimum number of tiles; smaller outputs are computed at once.
const TILES_MIN: i64 = 4;
/// Maximum number of tiles: each costs a few dozen records.
const TILES_MAX: i64 = 128;

impl Objective {
    /// Returns the number of cells of each tile for the loss of `rows` rows; one tile where the loss is computed at
    /// once. A softmax is over all cells of a row, so cross entropy is never divided.
    pub fn tiles(&self, rows: i64, cells: i64) -> Vec<i64> {
        let count = rows.saturating_mul(cells) / self.tile;
        if count < TILES_MIN || self.loss == Loss::CrossEntropy {
            return vec![cells];
        }
        let width = cells.cast_unsigned().div_ceil(count.min(TILES_MAX).cast_unsigned());
        (0..cells).step_by(width as usize).map(|start| (cells - start).min(width.cast_signed())).collect()
    }

    /// Returns Σ over the valid cells by weight.
    pub(super) fn sum(
        &self,
        cx: &Cx,
        z: &Tensor,
        channels: Option<&Tensor>,
        targets: &Targets,
        weight: Option<&Tensor>,
    ) -> Result<Tensor, OpError> {
        let sizes = self.tiles(z.dim(0), z.dim(-1));
        if sizes.len() == 1 {
            return self.element(cx, z, channels, targets, weight);
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
            cx.recompute_part(|cx| self.element(cx, &z[at], channels, &targets, weight))
        };
        (1..sizes.len()).try_fold(tile(0)?, |sum, at| functional::add(cx, &sum, &tile(at)?))
    }
}
