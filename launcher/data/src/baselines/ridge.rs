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
mod lambda;
mod primal;
mod problem;

pub(super) use inverse::shifted_inverse;
pub(super) use kernel::KernelRidge;
pub(super) use problem::{encode, sample};

use super::{cell_means::cell_means, encoding::Encoding, error::FitError};
use enn_common::staged::Staged;
use lambda::chosen;
use nalgebra::{DMatrix, DVector};
use problem::{Problem, Solution};

/// Largest linear system, min(rows, columns): beyond it rows are sampled.
const SIDE_MAX: usize = 2_048;

const ROWS_MAX: usize = 200_000;

const COEFFICIENTS_MAX: usize = 8_000_000;

/// Maximum numbers in the encoded training rows (dual only).
const ENCODED_MAX: usize = 64_000_000;

#[derive(Debug)]
pub struct Ridge {
    encoding: Encoding,
    /// Shape (columns, O).
    coefficients: DMatrix<f64>,
    /// Shape (O).
    intercepts: DVector<f64>,
    lambda: f64,
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

fn rows_max(columns: usize) -> usize {
    if columns <= SIDE_MAX { ROWS_MAX } else { SIDE_MAX.min(ENCODED_MAX / columns).max(3) }
}
