//! The output grid cut into patches: one token stands for one patch.

use enn_core::{
    autograd::{Cx, Tensor},
    error::OpError,
    functional,
};

/// Output shape (S[, T[, U]]) and patch sizes. The last patches of an axis may extend beyond the edge; their surplus
/// cells are cropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grid {
    shape: Vec<i64>,
    patch: Vec<i64>,
    counts: Vec<i64>,
}

impl Grid {
    /// Divides `shape` into patches of `patch` cells per axis.
    ///
    /// Missing entries of `patch` are 1 (for the last axes). Of surplus entries, the last ones count. An entry larger
    /// than its axis means the whole axis. All entries of both must be positive (checked by `ModelSpec`).
    pub fn new(shape: &[usize], patch: &[usize]) -> Self {
        let surplus = patch.len().saturating_sub(shape.len());
        let given = patch[surplus..].iter().copied().chain(std::iter::repeat(1));
        let patch: Vec<i64> = shape.iter().zip(given).map(|(&axis, p)| p.clamp(1, axis.max(1)) as i64).collect();
        let shape: Vec<i64> = shape.iter().map(|&axis| axis as i64).collect();
        let counts = shape.iter().zip(&patch).map(|(axis, p)| (axis + p - 1) / p).collect();
        Self { shape, patch, counts }
    }

    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Returns the number of patches along each axis.
    pub fn counts(&self) -> &[i64] {
        &self.counts
    }

    /// Returns G, the number of patches.
    pub fn tokens(&self) -> i64 {
        self.counts.iter().product()
    }

    /// Returns the number of cells of one patch.
    pub fn patch_volume(&self) -> i64 {
        self.patch.iter().product()
    }

    /// Returns O, the number of cells.
    pub fn cells(&self) -> i64 {
        self.shape.iter().product()
    }

    /// Maps one row of cells per patch (B, G, patch volume) to the flat grid (B, O), row-major over the output shape.
    pub fn unpatch(&self, cx: &Cx, x: &Tensor) -> Result<Tensor, OpError> {
        let batch = x.dim(0);
        let rank = self.rank();
        let split: Vec<i64> = [&[batch], self.counts.as_slice(), self.patch.as_slice()].concat();
        // (B, g₀, g₁, …, p₀, p₁, …) → (B, g₀, p₀, g₁, p₁, …).
        let order: Vec<i64> =
            std::iter::once(0).chain((0..rank).flat_map(|i| [1 + i as i64, (1 + rank + i) as i64])).collect();
        let padded: Vec<i64> =
            std::iter::once(batch).chain(self.counts.iter().zip(&self.patch).map(|(g, p)| g * p)).collect();
        let mut cells = functional::reshape(cx, x, &split)?;
        if self.patch_volume() > 1 {
            cells = functional::permute(cx, &cells, &order)?;
        }
        cells = functional::reshape(cx, &cells, &padded)?;
        for (axis, (&full, &wanted)) in (1_i64..).zip(padded[1..].iter().zip(&self.shape)) {
            if full > wanted {
                cells = functional::narrow(cx, &cells, axis, 0, wanted)?;
            }
        }
        functional::reshape(cx, &cells, &[batch, self.cells()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use enn_core::params::ParamBuilder;
    use tch::{Device, Kind, Tensor as Raw};

    #[test]
    fn patch_lists_shorter_and_longer_than_the_grid() {
        assert_eq!(Grid::new(&[3, 24], &[1, 4]).counts(), [3, 6]);
        assert_eq!(Grid::new(&[10], &[1, 4]).counts(), [3]);
        assert_eq!(Grid::new(&[3, 24, 2], &[1, 4]).counts(), [3, 6, 2]);
        assert_eq!(Grid::new(&[3, 24], &[8, 100]).counts(), [1, 1]);
        assert_eq!(Grid::new(&[3, 24], &[8, 100]).patch_volume(), 72);
    }

    /// Computes the place of cell (i, j, k) of patch (a, b, c) by arithmetic and compares it with the result of
    /// `unpatch`.
    #[test]
    fn every_cell_comes_from_its_patch() {
        for (shape, patch) in
            [(vec![7], vec![3]), (vec![3, 5], vec![2, 2]), (vec![2, 3, 4], vec![1, 2, 4]), (vec![4, 4], vec![1, 1])]
        {
            let grid = Grid::new(&shape, &patch);
            let g = grid.tokens();
            let p = grid.patch_volume();
            let x = Raw::arange(2 * g * p, (Kind::Float, Device::Cpu)).reshape([2, g, p]);
            let params = ParamBuilder::new().build(0, Device::Cpu).unwrap();
            let cx = Cx::eval(&params);
            let flat = grid.unpatch(&cx, &cx.input(x.shallow_clone())).unwrap().raw().shallow_clone();
            assert_eq!(flat.size(), [2, grid.cells()]);
            for cell in 0..grid.cells() {
                let mut rest = cell;
                let mut token = 0;
                let mut inside = 0;
                let mut token_unit = 1;
                let mut inside_unit = 1;
                for axis in (0..shape.len()).rev() {
                    let at = rest % shape[axis] as i64;
                    rest /= shape[axis] as i64;
                    token += at / grid.patch[axis] * token_unit;
                    inside += at % grid.patch[axis] * inside_unit;
                    token_unit *= grid.counts[axis];
                    inside_unit *= grid.patch[axis];
                }
                assert_eq!(flat.double_value(&[1, cell]), x.double_value(&[1, token, inside]), "{shape:?} cell {cell}");
            }
        }
    }
}
