//! Ridge regression in closed form, all outputs at once, λ chosen on the training rows by leaving out.
//!
//! With fewer rows than columns the n × n dual is solved and λ has the least exact leave-one-out error over observed cells;
//! otherwise the p × p normal equations are summed in blocks and λ has the least generalised cross-validation error. A missing
//! target must not pull its cell towards anything, so the solution is that of the observed rows of each cell: the dual finds
//! it exactly, the primal by filling in its own forecasts until they converge.
//!
//! **Invariant:** memory is bounded by the constants below; sums run in a fixed order, so results are reproducible.

mod dual;
mod inverse;
mod kernel;
mod primal;

pub(super) use inverse::shifted_inverse;
pub(super) use kernel::KernelRidge;

use super::{cell_means, encoding::Encoding, error::FitError};
use enn_common::{mix::spread, staged::Staged};
use nalgebra::{DMatrix, DVector};
use rayon::prelude::*;

/// Largest linear system, min(rows, columns): beyond it rows are sampled.
const SIDE_MAX: usize = 2_048;

const ROWS_MAX: usize = 200_000;

const COEFFICIENTS_MAX: usize = 8_000_000;

/// Maximum numbers in the encoded training rows (dual only).
const ENCODED_MAX: usize = 64_000_000;

/// Exponents of ten of λ relative to the mean eigenvalue: `GRID` values from `FIRST` in steps of 0.5.
const FIRST: f64 = -4.0;
const GRID: usize = 15;

#[derive(Debug)]
pub struct Ridge {
    encoding: Encoding,
    /// Shape (columns, O).
    coefficients: DMatrix<f64>,
    /// Shape (O).
    intercepts: DVector<f64>,
    lambda: f64,
}

struct Solution {
    coefficients: DMatrix<f64>,
    intercepts: DVector<f64>,
    lambda: f64,
    /// Index of λ in the grid.
    place: usize,
    how: &'static str,
    /// Whether missing targets count as their cell's mean, to save time.
    mean_filled: bool,
}

impl Ridge {
    /// Fits the rows `train`; `means` are the cells' training means. Returns the fit and notes.
    pub(super) fn fit(
        staged: &Staged,
        mut encoding: Encoding,
        train: &[usize],
        means: &[f64],
    ) -> Result<(Self, Vec<String>), FitError> {
        let columns = encoding.columns();
        let outputs = staged.outputs();
        if train.len() < 3 {
            return Err(FitError::FewRows { rows: train.len() });
        }
        if columns == 0 {
            return Err(FitError::NoColumns);
        }
        if columns.saturating_mul(outputs) > COEFFICIENTS_MAX {
            return Err(FitError::Large { columns, outputs, limit: COEFFICIENTS_MAX });
        }
        let mut notes = Vec::new();
        let rows = sample(train, rows_max(columns));
        let mut means = means.to_vec();
        if rows.len() < train.len() {
            encoding.centre(staged, &rows);
            means = cell_means(staged, &rows);
            notes.push(format!("fitted to a random sample of {} of {} training rows", rows.len(), train.len()));
        }
        let problem = Problem { staged, encoding: &encoding, rows: &rows, means: &means };
        let solution = if rows.len() <= columns { dual::solve(&problem) } else { primal::solve(&problem) };
        let Solution { coefficients, intercepts, lambda, place, how, mean_filled } =
            solution.ok_or(FitError::Singular)?;
        let chosen = chosen(lambda, place, how);
        notes.push(format!("{chosen}; {} rows, {columns} columns", rows.len()));
        if mean_filled {
            notes.push("too many targets are missing to leave each out; they count as their cell's mean".to_owned());
        }
        Ok((Self { encoding, coefficients, intercepts, lambda }, notes))
    }

    pub fn lambda(&self) -> f64 {
        self.lambda
    }

    /// Returns forecasts of shape (O, rows).
    pub(super) fn predict(&self, staged: &Staged, rows: &[usize]) -> DMatrix<f64> {
        let inputs = encode(staged, &self.encoding, rows);
        let mut forecast = self.coefficients.transpose() * inputs;
        forecast.column_iter_mut().for_each(|mut column| column += &self.intercepts);
        forecast
    }
}

fn chosen(lambda: f64, place: usize, how: &str) -> String {
    let edge = if place == 0 || place + 1 == GRID { ", at the edge of what was tried" } else { "" };
    let decimals = (3.0 - lambda.abs().max(1e-9).log10().floor()).clamp(0.0, 9.0) as usize;
    format!("λ = {lambda:.decimals$} by {how}{edge}")
}

struct Problem<'a> {
    staged: &'a Staged,
    encoding: &'a Encoding,
    rows: &'a [usize],
    means: &'a [f64],
}

impl Problem<'_> {
    /// Returns targets minus their cell's mean, shape (O, rows), 0 where missing.
    fn targets(&self, rows: &[usize]) -> DMatrix<f64> {
        let cells: Vec<usize> = (0..self.means.len()).collect();
        targets(self.staged, rows, &cells, self.means)
    }
}

/// Returns targets of some cells minus their mean, shape (cells, rows), 0 where missing.
fn targets(staged: &Staged, rows: &[usize], cells: &[usize], means: &[f64]) -> DMatrix<f64> {
    DMatrix::from_fn(cells.len(), rows.len(), |place, index| {
        let cell = cells[place];
        let valid = staged.y_mask_row(rows[index])[cell] != 0;
        if valid { f64::from(staged.y_row(rows[index])[cell]) - means[cell] } else { 0.0 }
    })
}

/// Encodes rows, shape (columns, rows): a staged row is one contiguous column.
pub(super) fn encode(staged: &Staged, encoding: &Encoding, rows: &[usize]) -> DMatrix<f64> {
    let mut inputs = DMatrix::zeros(encoding.columns(), rows.len());
    for (row, mut column) in rows.iter().zip(inputs.column_iter_mut()) {
        encoding.encode(staged, *row, column.as_mut_slice());
    }
    inputs
}

/// Returns the candidate values of λ, ascending, from the mean eigenvalue of the system.
fn grid(mean_eigenvalue: f64) -> Vec<f64> {
    (0..GRID).map(|step| mean_eigenvalue * 10f64.powf(FIRST + 0.5 * step as f64)).collect()
}

/// Returns the grid index of the least error: every second index is tried, then the neighbours of the best.
fn search(error: impl Fn(usize) -> Option<f64> + Sync) -> Option<usize> {
    let try_all = |places: Vec<usize>| -> Vec<(usize, f64)> {
        let tried = places.into_par_iter().map(|place| (place, error(place).unwrap_or(f64::NAN)));
        tried.collect::<Vec<_>>().into_iter().filter(|(_, error)| error.is_finite()).collect()
    };
    let least = |tried: &[(usize, f64)]| tried.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1));
    let mut tried = try_all((0..GRID).step_by(2).collect());
    let (best, _) = least(&tried)?;
    tried.extend(try_all([best.checked_sub(1), Some(best + 1)].into_iter().flatten().filter(|i| *i < GRID).collect()));
    least(&tried).map(|(place, _)| place)
}

fn rows_max(columns: usize) -> usize {
    if columns <= SIDE_MAX { ROWS_MAX } else { SIDE_MAX.min(ENCODED_MAX / columns).max(3) }
}

/// Samples at most `limit` of `rows`, ascending: the rows with the smallest hashes, so that the choice depends on the row alone.
pub(super) fn sample(rows: &[usize], limit: usize) -> Vec<usize> {
    if rows.len() <= limit {
        return rows.to_vec();
    }
    let mut keyed: Vec<(u64, usize)> = rows.iter().map(|row| (spread(*row as u64), *row)).collect();
    keyed.select_nth_unstable(limit);
    let mut chosen: Vec<usize> = keyed[..limit].iter().map(|(_, row)| *row).collect();
    chosen.sort_unstable();
    chosen
}
