//! Kernel ridge on crosses of the inputs.
//!
//! The kernel of two rows is k = Σ_S w_S Π_{c ∈ S} s_c over sets S of inputs, where s_c is 1 for the same category of input c and else 0;
//! for a number it is exp(−d²/2) of the standardised difference. That is ridge on a one-hot encoding of every input and of every
//! cross of inputs, each cross with a penalty of its own. A missing value is a category of its own.
//!
//! The sets are all single inputs, the pairs and triples as far as `SETS_MAX` allows, and the set of all inputs. Their weights are
//! chosen by coordinate descent on the leave-one-out error of a sample of rows and cells (missing targets count as their cell's mean);
//! then λ is chosen by exact leave-one-out over all cells. Both use the given rows alone.

use super::{
    super::error::FitError,
    dual,
    lambda::chosen,
    problem::{sample, targets},
};
use enn_common::staged::{Moments, Staged};
use nalgebra::{DMatrix, DVector};

/// Maximum sets of inputs, besides the set of all; single inputs are always included.
const SETS_MAX: usize = 16;
/// Maximum inputs in a set, besides the set of all.
const ORDER_MAX: usize = 3;
/// Initial weights of sets of one, two and more inputs, for λ = 1.
const FIRST: [f64; 3] = [3.0, 1.0, 0.3];
const MOVES: [f64; 3] = [0.0, 0.25, 4.0];
const ROUNDS: usize = 3;
const COLUMNS_MAX: usize = 64;
/// Maximum rows and output cells by which weights are chosen.
const SEARCH_ROWS_MAX: usize = 256;
const SEARCH_CELLS_MAX: usize = 96;
const ROWS_MAX: usize = 2_048;
const ROWS_MIN: usize = 64;
const FORECAST_WORK_MAX: usize = 100_000_000_000;

#[derive(Debug)]
pub struct KernelRidge {
    kernel: ProductKernel,
    /// Inputs of the fitted rows, shape (columns, rows).
    rows: DMatrix<f64>,
    /// Dual weights, shape (rows, O).
    dual: DMatrix<f64>,
    /// Shape (O).
    intercepts: DVector<f64>,
}

/// Weighted sum of products of per-input similarities.
#[derive(Debug)]
struct ProductKernel {
    inputs: Vec<InputKind>,
    /// Inputs of each set, and the set's weight.
    sets: Vec<(Vec<usize>, f64)>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum InputKind {
    /// Similarity is 1 for equal categories and 0 otherwise.
    Category,
    /// Similarity is exp(−d²/2) of the distance in standard deviations.
    Number { std: f64 },
}

impl KernelRidge {
    /// Fits the rows `train`; `means` are the cells' training means. Returns the fit and notes.
    pub(in crate::baselines) fn fit(
        staged: &Staged,
        train: &[usize],
        means: &[f64],
    ) -> Result<(Self, Vec<String>), FitError> {
        let columns = staged.features();
        let outputs = staged.outputs();
        if train.len() < 3 {
            return Err(FitError::FewRows { rows: train.len() });
        }
        if columns > COLUMNS_MAX {
            return Err(FitError::ManyInputs { columns, limit: COLUMNS_MAX });
        }
        let affordable = FORECAST_WORK_MAX / staged.rows().saturating_mul(outputs).max(1);
        if affordable < ROWS_MIN.min(train.len()) {
            return Err(FitError::ManyForecasts { rows: staged.rows(), outputs });
        }
        let rows = sample(train, ROWS_MAX.min(affordable));
        let mut kernel = ProductKernel::new(staged, &rows);
        kernel.choose(staged, &sample(&rows, SEARCH_ROWS_MAX), means).ok_or(FitError::Singular)?;
        let all: Vec<usize> = (0..outputs).collect();
        let (groups, mean_filled) = dual::groups(staged, &rows, &all);
        let values = values(staged, &rows);
        let gram = kernel.gram(&values, &values);
        let solved = dual::solve_kernel(&gram, &targets(staged, &rows, &all, means).transpose(), &groups);
        let dual::Solved { dual, shift, lambda, place } = solved.ok_or(FitError::Singular)?;
        let words = kernel.words(staged);
        let chosen = chosen(lambda, place, "leave-one-out");
        let mut notes = vec![format!("{words}; {chosen}; {} rows", rows.len())];
        if rows.len() < train.len() {
            notes.push(format!("fitted to a random sample of {} of {} training rows", rows.len(), train.len()));
        }
        if mean_filled {
            notes.push("too many targets are missing to leave each out; they count as their cell's mean".to_owned());
        }
        let intercepts = shift + DVector::from_column_slice(means);
        Ok((Self { kernel, rows: values, dual, intercepts }, notes))
    }

    /// Returns forecasts of shape (O, rows).
    pub(in crate::baselines) fn predict(&self, staged: &Staged, rows: &[usize]) -> DMatrix<f64> {
        let mut forecast = self.dual.transpose() * self.kernel.gram(&self.rows, &values(staged, rows));
        forecast.column_iter_mut().for_each(|mut column| column += &self.intercepts);
        forecast
    }
}

impl ProductKernel {
    fn new(staged: &Staged, rows: &[usize]) -> Self {
        let features = &staged.meta().features;
        let kind = |column: usize| match features[column].categories.is_empty() {
            false => InputKind::Category,
            true => {
                let mut moments = Moments::default();
                let valid = rows.iter().filter(|row| staged.x_mask_row(**row)[column] != 0);
                valid.for_each(|row| moments.push(f64::from(staged.x_row(*row)[column])));
                let std = moments.stats().std;
                InputKind::Number { std: if std > 0.0 { std } else { 1.0 } }
            }
        };
        let inputs: Vec<InputKind> = (0..features.len()).map(kind).collect();
        let first = |set: Vec<usize>| {
            let weight = FIRST[set.len().min(FIRST.len()) - 1];
            (set, weight)
        };
        Self { sets: sets(inputs.len()).into_iter().map(first).collect(), inputs }
    }

    /// Chooses the weights of the sets by `rows`; `None` when no system can be solved.
    fn choose(&mut self, staged: &Staged, rows: &[usize], means: &[f64]) -> Option<()> {
        let cells: Vec<usize> = (0..means.len()).step_by(means.len().div_ceil(SEARCH_CELLS_MAX).max(1)).collect();
        let targets = targets(staged, rows, &cells, means).transpose();
        let values = values(staged, rows);
        let similarities: Vec<DMatrix<f64>> =
            self.sets.iter().map(|(set, _)| self.of_set(set, &values, &values)).collect();
        let error = |weights: &[f64]| {
            let mut gram = DMatrix::zeros(rows.len(), rows.len());
            let parts = similarities.iter().zip(weights).filter(|(_, weight)| **weight > 0.0);
            parts.for_each(|(similarity, weight)| gram += similarity * *weight);
            dual::left_out(&gram, &targets)
        };
        let mut weights: Vec<f64> = self.sets.iter().map(|(_, weight)| *weight).collect();
        let mut best = error(&weights)?;
        // All weights together first, then each alone.
        let coordinates: Vec<Vec<usize>> =
            std::iter::once((0..weights.len()).collect()).chain((0..weights.len()).map(|set| vec![set])).collect();
        for _ in 0..ROUNDS {
            let before = best;
            for moved in &coordinates {
                let from = weights.clone();
                for factor in MOVES {
                    let mut tried = from.clone();
                    // A weight that is 0 is tried again from its initial value.
                    moved.iter().for_each(|set| {
                        tried[*set] = if from[*set] > 0.0 { from[*set] } else { self.sets[*set].1 } * factor
                    });
                    if let Some(found) = error(&tried).filter(|found| *found < best) {
                        best = found;
                        weights = tried;
                    }
                }
            }
            if best >= before {
                break;
            }
        }
        self.sets.iter_mut().zip(weights).for_each(|((_, weight), chosen)| *weight = chosen);
        self.sets.retain(|(_, weight)| *weight > 0.0);
        Some(())
    }

    /// Returns the kernel of every row of `a` with every row of `b`.
    fn gram(&self, a: &DMatrix<f64>, b: &DMatrix<f64>) -> DMatrix<f64> {
        let mut gram = DMatrix::zeros(a.ncols(), b.ncols());
        self.sets.iter().for_each(|(set, weight)| gram += self.of_set(set, a, b) * *weight);
        gram
    }

    fn of_set(&self, set: &[usize], a: &DMatrix<f64>, b: &DMatrix<f64>) -> DMatrix<f64> {
        let similarity =
            |i: usize, j: usize| set.iter().map(|c| self.inputs[*c].similarity(a[(*c, i)], b[(*c, j)])).product();
        DMatrix::from_fn(a.ncols(), b.ncols(), similarity)
    }

    fn words(&self, staged: &Staged) -> String {
        let features = &staged.meta().features;
        let of = |(set, weight): &(Vec<usize>, f64)| {
            let names: Vec<&str> = set.iter().map(|column| features[*column].name.as_str()).collect();
            format!("{} {weight:.3}", names.join("×"))
        };
        self.sets.iter().map(of).collect::<Vec<_>>().join(", ")
    }
}

impl InputKind {
    /// Returns a similarity in [0, 1]; NaN stands for a missing value.
    fn similarity(self, a: f64, b: f64) -> f64 {
        match self {
            _ if a.is_nan() || b.is_nan() => f64::from(u8::from(a.is_nan() && b.is_nan())),
            // An index is a small whole number, so the comparison is exact.
            Self::Category => f64::from(u8::from(a == b)),
            Self::Number { std } => (-0.5 * ((a - b) / std).powi(2)).exp(),
        }
    }
}

fn sets(columns: usize) -> Vec<Vec<usize>> {
    let mut all: Vec<Vec<usize>> = (0..columns).map(|column| vec![column]).collect();
    let mut last = all.clone();
    for _ in 2..=ORDER_MAX.min(columns) {
        let longer = |set: &Vec<usize>| {
            let set = set.clone();
            (set[set.len() - 1] + 1..columns).map(move |next| [set.clone(), vec![next]].concat())
        };
        last = last.iter().flat_map(longer).collect();
        if all.len() + last.len() > SETS_MAX {
            break;
        }
        all.extend(last.clone());
    }
    let whole: Vec<usize> = (0..columns).collect();
    if !all.contains(&whole) {
        all.push(whole);
    }
    all
}

/// Returns inputs of shape (columns, rows), NaN where missing.
fn values(staged: &Staged, rows: &[usize]) -> DMatrix<f64> {
    DMatrix::from_fn(staged.features(), rows.len(), |column, index| {
        let valid = staged.x_mask_row(rows[index])[column] != 0;
        if valid { f64::from(staged.x_row(rows[index])[column]) } else { f64::NAN }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_the_inputs_and_their_crosses() {
        assert_eq!(sets(1), [[0]]);
        let three = sets(3);
        assert_eq!(three.len(), 7);
        assert!(three.contains(&vec![0, 2]) && three.contains(&vec![0, 1, 2]));
        // Crosses of three would be ten more.
        assert_eq!(sets(5).len(), 5 + 10 + 1);
        assert_eq!(sets(12).len(), 13);
    }

    #[test]
    fn missing_is_like_missing() {
        let number = InputKind::Number { std: 2.0 };
        assert_eq!((InputKind::Category.similarity(1.0, 1.0), InputKind::Category.similarity(1.0, 2.0)), (1.0, 0.0));
        assert!((number.similarity(1.0, 3.0) - (-0.5f64).exp()).abs() < 1e-12);
        assert_eq!((number.similarity(f64::NAN, f64::NAN), InputKind::Category.similarity(f64::NAN, 0.0)), (1.0, 0.0));
    }
}
