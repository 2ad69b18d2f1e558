//! What a ridge regression is fitted to, and its solution.

use crate::baselines::encoding::Encoding;
use enn_common::{mix::spread, staged::Staged};
use nalgebra::{DMatrix, DVector};

pub(super) struct Solution {
    pub(super) coefficients: DMatrix<f64>,
    pub(super) intercepts: DVector<f64>,
    pub(super) lambda: f64,
    /// Index of λ in the grid.
    pub(super) place: usize,
    pub(super) how: &'static str,
    /// Whether missing targets count as their cell's mean, to save time.
    pub(super) mean_filled: bool,
}

pub(super) struct Problem<'a> {
    pub(super) staged: &'a Staged,
    pub(super) encoding: &'a Encoding,
    pub(super) rows: &'a [usize],
    pub(super) means: &'a [f64],
}

impl Problem<'_> {
    /// Returns targets minus their cell's mean, shape (O, rows), 0 where missing.
    pub(super) fn targets(&self, rows: &[usize]) -> DMatrix<f64> {
        let cells: Vec<usize> = (0..self.means.len()).collect();
        targets(self.staged, rows, &cells, self.means)
    }
}

/// Returns targets of some cells minus their mean, shape (cells, rows), 0 where missing.
pub(super) fn targets(staged: &Staged, rows: &[usize], cells: &[usize], means: &[f64]) -> DMatrix<f64> {
    DMatrix::from_fn(cells.len(), rows.len(), |place, index| {
        let cell = cells[place];
        let valid = staged.y_mask_row(rows[index])[cell] != 0;
        if valid { f64::from(staged.y_row(rows[index])[cell]) - means[cell] } else { 0.0 }
    })
}

/// Encodes rows, shape (columns, rows): a staged row is one contiguous column.
pub(in crate::baselines) fn encode(staged: &Staged, encoding: &Encoding, rows: &[usize]) -> DMatrix<f64> {
    let mut inputs = DMatrix::zeros(encoding.columns(), rows.len());
    for (row, mut column) in rows.iter().zip(inputs.column_iter_mut()) {
        encoding.encode(staged, *row, column.as_mut_slice());
    }
    inputs
}

/// Samples at most `limit` of `rows`, ascending: the rows with the smallest hashes, so that the choice depends on the row alone.
pub(in crate::baselines) fn sample(rows: &[usize], limit: usize) -> Vec<usize> {
    if rows.len() <= limit {
        return rows.to_vec();
    }
    let mut keyed: Vec<(u64, usize)> = rows.iter().map(|row| (spread(*row as u64), *row)).collect();
    keyed.select_nth_unstable(limit);
    let mut chosen: Vec<usize> = keyed[..limit].iter().map(|(_, row)| *row).collect();
    chosen.sort_unstable();
    chosen
}
