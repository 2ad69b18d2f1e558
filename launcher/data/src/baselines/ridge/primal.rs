//! More rows than columns: the normal equations (G + λI) B = R with G = Σ x xᵀ, R = Σ x yᵀ over centred rows.

use super::{
    inverse::shifted_inverse,
    lambda::{grid, search},
    problem::{Problem, Solution, encode},
};
use nalgebra::{DMatrix, DVector};
use rayon::prelude::*;

const BLOCK_ROWS: usize = 512;

/// Parts that are summed in parallel; fixed, so that the order of sums does not depend on the machine.
const PARTS: usize = 4;

/// Maximum rounds of filling in missing targets; each round shrinks the error by about columns ÷ rows.
const FILLS_MAX: usize = 30;

/// Filling ends when no forecast moves by more than this fraction of the targets' size.
const FILL_TOLERANCE: f64 = 1e-8;

/// Maximum missing targets × columns for which targets are filled in.
const FILL_WORK_MAX: usize = 2_000_000_000;

/// Rows with missing targets; for each the cells and their filled-in values, initially 0.
type Missing = Vec<(usize, Vec<(usize, f64)>)>;

struct NormalEquations {
    /// Shape (columns, columns).
    gram: DMatrix<f64>,
    /// Shape (columns, O).
    cross: DMatrix<f64>,
    /// Sum of squared targets, Σ y².
    square: f64,
}

pub(super) fn solve(problem: &Problem) -> Option<Solution> {
    let mut sums = NormalEquations::over(problem);
    let columns = sums.gram.nrows();
    let lambdas = grid(sums.gram.trace() / columns as f64);
    let place = search(|place| sums.error(lambdas[place], problem.rows.len()))?;
    let inverse = shifted_inverse(sums.gram.clone(), lambdas[place])?;
    let mut missing = missing(problem);
    let work = missing.iter().map(|(_, cells)| cells.len() * columns).sum::<usize>();
    let mean_filled = work > FILL_WORK_MAX;
    if mean_filled {
        missing.clear();
    }
    let (coefficients, shift) = fill(problem, &mut sums, &inverse, missing);
    let intercepts = DVector::from_column_slice(problem.means) + shift;
    let how = "generalised cross-validation";
    Some(Solution { coefficients, intercepts, lambda: lambdas[place], place, how, mean_filled })
}

impl NormalEquations {
    fn over(problem: &Problem) -> Self {
        let part_rows = problem.rows.len().div_ceil(PARTS);
        let parts: Vec<Self> = problem.rows.par_chunks(part_rows).map(|rows| Self::of(problem, rows)).collect();
        let add = |mut sums: Self, part: Self| {
            sums.gram += part.gram;
            sums.cross += part.cross;
            sums.square += part.square;
            sums
        };
        parts.into_iter().reduce(add).unwrap_or_else(|| Self::of(problem, &[]))
    }

    fn of(problem: &Problem, rows: &[usize]) -> Self {
        let columns = problem.encoding.columns();
        let outputs = problem.means.len();
        let mut sums =
            Self { gram: DMatrix::zeros(columns, columns), cross: DMatrix::zeros(columns, outputs), square: 0.0 };
        for block in rows.chunks(BLOCK_ROWS) {
            let inputs = encode(problem.staged, problem.encoding, block);
            let targets = problem.targets(block);
            sums.gram.gemm(1.0, &inputs, &inputs.transpose(), 1.0);
            sums.cross.gemm(1.0, &inputs, &targets.transpose(), 1.0);
            sums.square += targets.norm_squared();
        }
        sums
    }

    /// Generalised cross-validation error: residual sum of squares ÷ (1 − degrees of freedom ÷ rows)².
    fn error(&self, lambda: f64, rows: usize) -> Option<f64> {
        let inverse = shifted_inverse(self.gram.clone(), lambda)?;
        let coefficients = &inverse * &self.cross;
        let explained = 2.0 * coefficients.dot(&self.cross) - coefficients.dot(&(&self.gram * &coefficients));
        let freedom = 1.0 + self.gram.nrows() as f64 - lambda * inverse.trace();
        let left = 1.0 - freedom / rows as f64;
        (left > 0.0).then(|| (self.square - explained).max(0.0) / (left * left))
    }
}

/// Returns the coefficients and the offsets from the cells' means. Missing targets are replaced by their own forecasts until these
/// converge: then they do not influence the fit.
fn fill(
    problem: &Problem,
    sums: &mut NormalEquations,
    inverse: &DMatrix<f64>,
    mut missing: Missing,
) -> (DMatrix<f64>, DVector<f64>) {
    let mut coefficients = inverse * &sums.cross;
    let mut shift = DVector::zeros(problem.means.len());
    if missing.is_empty() {
        return (coefficients, shift);
    }
    let size = (sums.square / problem.rows.len() as f64).sqrt();
    let mut inputs = vec![0.0; coefficients.nrows()];
    for _ in 0..FILLS_MAX {
        let mut moved: f64 = 0.0;
        let mut shift_next = shift.clone();
        for (row, cells) in &mut missing {
            problem.encoding.encode(problem.staged, *row, &mut inputs);
            for (cell, value) in cells {
                let forecast = shift[*cell] + dot(&inputs, coefficients.column(*cell).as_slice());
                let step = forecast - *value;
                *value = forecast;
                moved = moved.max(step.abs());
                shift_next[*cell] += step / problem.rows.len() as f64;
                let mut cross = sums.cross.column_mut(*cell);
                cross.iter_mut().zip(&inputs).for_each(|(sum, input)| *sum += input * step);
            }
        }
        shift = shift_next;
        coefficients = inverse * &sums.cross;
        if moved <= FILL_TOLERANCE * size {
            break;
        }
    }
    (coefficients, shift)
}

fn missing(problem: &Problem) -> Missing {
    let of = |row: &usize| {
        let mask = problem.staged.y_mask_row(*row);
        let cells: Vec<(usize, f64)> =
            (0..mask.len()).filter(|cell| mask[*cell] == 0).map(|cell| (cell, 0.0)).collect();
        (!cells.is_empty()).then_some((*row, cells))
    };
    problem.rows.iter().filter_map(of).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
