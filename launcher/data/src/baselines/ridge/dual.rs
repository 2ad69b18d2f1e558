//! Fewer rows than columns: the n × n system K + λ I, with an intercept that is not penalised.
//!
//! With C = (K + λI)⁻¹ and P = C − C11ᵀC / 1ᵀC1 the dual weights of targets y are α = P y and the intercept is 1ᵀCy / 1ᵀC1. Rows
//! M without a target are left out of the fit by those y_M that make α_M = 0; what remains for the others is
//! P' = P − P_·M P_MM⁻¹ P_M·, and the residual of row i when it is left out too is αᵢ / P'ᵢᵢ.

use super::{
    inverse::shifted_inverse,
    lambda::{grid, search},
    problem::{Problem, Solution, encode},
};
use enn_common::staged::Staged;
use nalgebra::{Cholesky, DMatrix, DVector};
use std::collections::BTreeMap;

/// Sum over groups of (rows without a target)³ beyond which missing targets are taken as their cell's mean.
const GAP_WORK_MAX: f64 = 2e10;

/// Output cells whose targets are missing in the same rows.
pub(super) struct Group {
    missing: Vec<usize>,
    cells: Vec<usize>,
}

/// The matrix P and the vector C1 / 1ᵀC1 for one λ.
struct System {
    projector: DMatrix<f64>,
    weights: DVector<f64>,
}

/// Targets with the missing ones filled, dual weights, and the sum of squared residuals of rows left out.
struct Fit {
    filled: DMatrix<f64>,
    dual: DMatrix<f64>,
    error: f64,
}

pub(super) fn solve(problem: &Problem) -> Option<Solution> {
    let inputs = encode(problem.staged, problem.encoding, problem.rows);
    let targets = problem.targets(problem.rows).transpose();
    let cells: Vec<usize> = (0..problem.means.len()).collect();
    let (groups, mean_filled) = groups(problem.staged, problem.rows, &cells);
    let Solved { dual, shift, lambda, place } = solve_kernel(&(inputs.transpose() * &inputs), &targets, &groups)?;
    Some(Solution {
        coefficients: &inputs * dual,
        intercepts: shift + DVector::from_column_slice(problem.means),
        lambda,
        place,
        how: "leave-one-out",
        mean_filled,
    })
}

pub(super) struct Solved {
    /// Dual weights (rows, O).
    pub(super) dual: DMatrix<f64>,
    /// Intercepts (O) of the given targets.
    pub(super) shift: DVector<f64>,
    pub(super) lambda: f64,
    /// Index of λ in the grid.
    pub(super) place: usize,
}

/// Solves for targets (rows, O) with the λ that has the least leave-one-out error.
pub(super) fn solve_kernel(gram: &DMatrix<f64>, targets: &DMatrix<f64>, groups: &[Group]) -> Option<Solved> {
    let lambdas = grid(gram.trace() / gram.nrows() as f64);
    let fit = |lambda: f64| {
        let system = System::new(gram, lambda)?;
        let fit = system.fit(targets, groups)?;
        Some((system, fit))
    };
    let place = search(|place| Some(fit(lambdas[place])?.1.error))?;
    let (system, fit) = fit(lambdas[place])?;
    let shift = fit.filled.transpose() * &system.weights;
    Some(Solved { dual: fit.dual, shift, lambda: lambdas[place], place })
}

/// Returns the sum of squared leave-one-out errors for λ = 1 and targets (rows, O) without missing values.
pub(super) fn left_out(gram: &DMatrix<f64>, targets: &DMatrix<f64>) -> Option<f64> {
    let whole = Group { missing: vec![], cells: (0..targets.ncols()).collect() };
    Some(System::new(gram, 1.0)?.fit(targets, &[whole])?.error)
}

impl System {
    fn new(gram: &DMatrix<f64>, lambda: f64) -> Option<Self> {
        let inverse = shifted_inverse(gram.clone(), lambda)?;
        let sums = inverse.column_sum();
        let total = sums.sum();
        if !(total.is_finite() && total > 0.0) {
            return None;
        }
        let projector = inverse - &sums * sums.transpose() / total;
        Some(Self { projector, weights: sums / total })
    }

    fn fit(&self, targets: &DMatrix<f64>, groups: &[Group]) -> Option<Fit> {
        let mut filled = targets.clone();
        let mut diagonals = Vec::with_capacity(groups.len());
        for Group { missing, cells } in groups {
            let mut diagonal = self.projector.diagonal();
            if !missing.is_empty() {
                let across = self.projector.select_rows(missing);
                let factor = Cholesky::new(across.select_columns(missing))?;
                let wanted = factor.solve(&(-(&across * targets.select_columns(cells))));
                for (row, values) in missing.iter().zip(wanted.row_iter()) {
                    cells.iter().zip(values.iter()).for_each(|(cell, value)| filled[(*row, *cell)] = *value);
                }
                diagonal -= factor.solve(&across).component_mul(&across).row_sum_tr();
            }
            diagonals.push(diagonal);
        }
        let dual = &self.projector * &filled;
        let mut error = 0.0;
        for (Group { missing, cells }, diagonal) in groups.iter().zip(&diagonals) {
            for row in (0..targets.nrows()).filter(|row| missing.binary_search(row).is_err()) {
                error += cells.iter().map(|cell| (dual[(row, *cell)] / diagonal[row]).powi(2)).sum::<f64>();
            }
        }
        Some(Fit { filled, dual, error })
    }
}

/// Groups `cells`, as indices into `cells`, by their missing rows. The flag is true where leaving out missing targets would take too
/// long, so that they count as their cell's mean. A cell with fewer than two targets has nothing to fit: it keeps its mean.
pub(super) fn groups(staged: &Staged, rows: &[usize], cells: &[usize]) -> (Vec<Group>, bool) {
    let mut groups: BTreeMap<Vec<usize>, Vec<usize>> = BTreeMap::new();
    for (column, cell) in cells.iter().enumerate() {
        let lacks = |index: &usize| staged.y_mask_row(rows[*index])[*cell] == 0;
        let mut missing: Vec<usize> = (0..rows.len()).filter(lacks).collect();
        if missing.len() + 1 >= rows.len() {
            missing.clear();
        }
        groups.entry(missing).or_default().push(column);
    }
    if groups.keys().map(|missing| (missing.len() as f64).powi(3)).sum::<f64>() > GAP_WORK_MAX {
        return (vec![Group { missing: vec![], cells: (0..cells.len()).collect() }], true);
    }
    (groups.into_iter().map(|(missing, cells)| Group { missing, cells }).collect(), false)
}
