//! Kernel ridge on all crosses of the inputs.
//!
//! Two rows are alike by k = Π_c ((1 − θ_c) + θ_c s_c), where s_c is 1 for the same category of input c and else 0; for a number it is
//! exp(−d²/2) of the standardised difference. Multiplied out, that is a one-hot encoding of every input and of every cross of
//! inputs, weighted by the product of the θ of its inputs and of the 1 − θ of the others: θ near 0 keeps an input additive, 1 crosses
//! it with everything. A missing value is a category of its own; one that no training row has is like no other.
//!
//! The θ are chosen one input after the other, twice around, each by the least leave-one-out error with the best λ for it; then λ
//! by leave-one-out over all output cells. Both see the given rows alone.

use super::{super::error::RidgeRefused, chosen, dual, sample, targets};
use enn_common::staged::{Moments, Staged};
use nalgebra::{DMatrix, DVector};

/// Weights θ that are tried.
const THETAS: [f64; 8] = [0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0];
/// Place in `THETAS` that all inputs begin with.
const FIRST: usize = 3;
/// Times around the inputs.
const ROUNDS: usize = 2;
/// Inputs at most.
const COLUMNS_MAX: usize = 64;
/// Rows and output cells by which θ is chosen.
const SEARCH_ROWS_MAX: usize = 512;
const SEARCH_CELLS_MAX: usize = 96;
/// Rows that are fitted, at most and at least.
const ROWS_MAX: usize = 2_048;
const ROWS_MIN: usize = 64;
/// Products for the forecasts of all rows, at most.
const FORECAST_WORK_MAX: usize = 100_000_000_000;

/// A fitted kernel ridge.
#[derive(Debug)]
pub struct KernelRidge {
    likeness: Likeness,
    /// Rows that were fitted, input by input (columns, rows).
    rows: DMatrix<f64>,
    /// Weights (rows, O).
    dual: DMatrix<f64>,
    /// (O).
    intercepts: DVector<f64>,
}

/// How alike two rows are.
#[derive(Debug)]
struct Likeness {
    inputs: Vec<Kind>,
    thetas: Vec<f64>,
}

/// An input and how its values are compared.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    /// Equal or not.
    Category,
    /// By the distance in standard deviations.
    Number { std: f64 },
}

impl KernelRidge {
    /// Fits to the rows `train`; `means` are the cells' training means. Returns the fit and notes for people.
    pub(in crate::baselines) fn fit(
        staged: &Staged,
        train: &[usize],
        means: &[f64],
    ) -> Result<(Self, Vec<String>), RidgeRefused> {
        let (columns, outputs) = (staged.features(), staged.outputs());
        if train.len() < 3 {
            return Err(RidgeRefused::FewRows { rows: train.len() });
        }
        if columns > COLUMNS_MAX {
            return Err(RidgeRefused::ManyInputs { columns, limit: COLUMNS_MAX });
        }
        let affordable = FORECAST_WORK_MAX / staged.rows().saturating_mul(outputs).max(1);
        if affordable < ROWS_MIN.min(train.len()) {
            return Err(RidgeRefused::ManyForecasts { rows: staged.rows(), outputs });
        }
        let rows = sample(train, ROWS_MAX.min(affordable));
        let mut likeness = Likeness::new(staged, &rows);
        likeness.choose(staged, &sample(&rows, SEARCH_ROWS_MAX), means).ok_or(RidgeRefused::NoColumns)?;
        let all: Vec<usize> = (0..outputs).collect();
        let (groups, mean_filled) = dual::groups(staged, &rows, &all);
        let values = values(staged, &rows, &likeness.inputs);
        let gram = likeness.gram(&values, &values);
        let solved = dual::solve_kernel(&gram, &targets(staged, &rows, &all, means).transpose(), &groups);
        let dual::Solved { dual, shift, lambda, place, .. } = solved.ok_or(RidgeRefused::Singular)?;
        let mut notes = vec![format!(
            "all crosses of {}; {}; {} rows",
            likeness.words(staged),
            chosen(lambda, place, "leave-one-out"),
            rows.len()
        )];
        if rows.len() < train.len() {
            notes.push(format!("fitted to a random sample of {} of {} training rows", rows.len(), train.len()));
        }
        if mean_filled {
            notes.push("too many targets are missing to leave each out; they count as their cell's mean".to_owned());
        }
        let intercepts = shift + DVector::from_column_slice(means);
        Ok((Self { likeness, rows: values, dual, intercepts }, notes))
    }

    /// Forecasts (O, rows).
    pub(in crate::baselines) fn predict(&self, staged: &Staged, rows: &[usize]) -> DMatrix<f64> {
        let values = values(staged, rows, &self.likeness.inputs);
        let mut forecast = self.dual.tr_mul(&self.likeness.gram(&self.rows, &values));
        forecast.column_iter_mut().for_each(|mut column| column += &self.intercepts);
        forecast
    }
}

impl Likeness {
    fn new(staged: &Staged, rows: &[usize]) -> Self {
        let features = &staged.meta().features;
        let kind = |column: usize| match features[column].categories.is_empty() {
            false => Kind::Category,
            true => {
                let valid = rows.iter().filter(|row| staged.x_mask_row(**row)[column] != 0);
                let mut moments = Moments::default();
                valid.for_each(|row| moments.push(f64::from(staged.x_row(*row)[column])));
                let std = moments.stats().std;
                Kind::Number { std: if std > 0.0 { std } else { 1.0 } }
            }
        };
        let inputs: Vec<Kind> = (0..features.len()).map(kind).collect();
        Self { thetas: vec![THETAS[FIRST]; inputs.len()], inputs }
    }

    /// Chooses the weights by `rows`; `None` when nothing can be solved.
    fn choose(&mut self, staged: &Staged, rows: &[usize], means: &[f64]) -> Option<()> {
        let outputs = means.len();
        let step = outputs.div_ceil(SEARCH_CELLS_MAX);
        let cells: Vec<usize> = (0..outputs).step_by(step).collect();
        let (groups, _) = dual::groups(staged, rows, &cells);
        let targets = targets(staged, rows, &cells, means).transpose();
        let values = values(staged, rows, &self.inputs);
        let error =
            |likeness: &Self| Some(dual::solve_kernel(&likeness.gram(&values, &values), &targets, &groups)?.error);
        let mut best = error(self)?;
        for _ in 0..ROUNDS {
            let before = best;
            for column in 0..self.inputs.len() {
                let mut kept = self.thetas[column];
                for theta in THETAS {
                    self.thetas[column] = theta;
                    if let Some(found) = error(self).filter(|found| *found < best) {
                        (best, kept) = (found, theta);
                    }
                }
                self.thetas[column] = kept;
            }
            if best >= before {
                break;
            }
        }
        Some(())
    }

    /// Likeness of every row of `a` to every row of `b`.
    fn gram(&self, a: &DMatrix<f64>, b: &DMatrix<f64>) -> DMatrix<f64> {
        let mut gram = DMatrix::from_element(a.ncols(), b.ncols(), 1.0);
        for (column, (kind, theta)) in self.inputs.iter().zip(&self.thetas).enumerate() {
            for (j, mut likes) in gram.column_iter_mut().enumerate() {
                let other = b[(column, j)];
                for (like, value) in likes.iter_mut().zip(a.row(column).iter()) {
                    *like *= (1.0 - theta) + theta * kind.like(*value, other);
                }
            }
        }
        gram
    }

    fn words(&self, staged: &Staged) -> String {
        let of =
            |(feature, theta): (&enn_common::staged::meta::FeatureMeta, &f64)| format!("{} (θ {theta})", feature.name);
        staged.meta().features.iter().zip(&self.thetas).map(of).collect::<Vec<_>>().join(" × ")
    }
}

impl Kind {
    /// 1: the same; NaN is a value that is missing.
    fn like(self, a: f64, b: f64) -> f64 {
        match self {
            _ if a.is_nan() || b.is_nan() => f64::from(u8::from(a.is_nan() && b.is_nan())),
            // An index is a small whole number, so the comparison is exact.
            Self::Category => f64::from(u8::from(a == b)),
            Self::Number { std } => (-0.5 * ((a - b) / std).powi(2)).exp(),
        }
    }
}

/// Inputs of some rows (columns, rows), NaN where missing.
fn values(staged: &Staged, rows: &[usize], inputs: &[Kind]) -> DMatrix<f64> {
    DMatrix::from_fn(inputs.len(), rows.len(), |column, index| {
        let valid = staged.x_mask_row(rows[index])[column] != 0;
        if valid { f64::from(staged.x_row(rows[index])[column]) } else { f64::NAN }
    })
}
