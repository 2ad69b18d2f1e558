//! Multinomial logistic regression, λ chosen by what a fifth of the rows says of a fit to the others.
//!
//! The second derivative of the log-loss is nowhere more than half the Gram matrix of the inputs (Böhning 1992), so that
//! B ← B + (G/2 + λ)⁻¹ (X (Y − P)ᵀ − λ B) never makes the fit worse: one inverse for all steps, and every step is two products.
//!
//! **Invariant:** work is bounded by the constants below; sums run in a fixed order, so results are reproducible.

use super::{
    encoding::Encoding,
    error::RidgeRefused,
    ridge::{encode, inverse, sample},
    scores::PROBABILITY_MIN,
};
use enn_common::staged::Staged;
use nalgebra::{DMatrix, DVector};

/// Rows × columns × classes at most; of more rows a sample is fitted.
const WORK_MAX: usize = 20_000_000;
const ROWS_MIN: usize = 256;
/// Columns × columns at most.
const COLUMNS_MAX: usize = 2_000;
/// Steps at most, and the change of a coefficient below which they end.
const STEPS_MAX: usize = 100;
const TOLERANCE: f64 = 1e-4;
/// λ relative to the mean eigenvalue of the Gram matrix, strongest first.
const LAMBDAS: [f64; 6] = [1.0, 0.1, 1e-2, 1e-3, 1e-4, 1e-5];
/// One row in so many says which λ is best.
const HELD: usize = 5;

/// A fitted logistic regression.
#[derive(Debug)]
pub struct Logistic {
    encoding: Encoding,
    weights: Weights,
}

/// Coefficients (columns, classes) and intercepts (classes).
#[derive(Debug, Clone)]
struct Weights {
    coefficients: DMatrix<f64>,
    intercepts: DVector<f64>,
}

/// Rows as columns of inputs (columns, rows) and of classes (classes, rows), 1 for the class.
struct Rows {
    inputs: DMatrix<f64>,
    classes: DMatrix<f64>,
}

/// Rows to fit to, and the Gram matrix of their inputs, which is the same for every λ.
struct Fitted {
    rows: Rows,
    gram: DMatrix<f64>,
}

impl Logistic {
    /// Fits to those of the rows `train` that have a class; `rates` are how often each occurs. Returns the fit and notes for people.
    pub(super) fn fit(
        staged: &Staged,
        mut encoding: Encoding,
        train: &[usize],
        rates: &[f64],
    ) -> Result<(Self, Vec<String>), RidgeRefused> {
        let with_class: Vec<usize> =
            train.iter().copied().filter(|row| staged.y_mask_row(*row).first() == Some(&1)).collect();
        let (columns, classes) = (encoding.columns(), rates.len());
        if with_class.len() < 3 {
            return Err(RidgeRefused::FewRows { rows: with_class.len() });
        }
        if columns == 0 {
            return Err(RidgeRefused::NoColumns);
        }
        if columns > COLUMNS_MAX {
            return Err(RidgeRefused::ManyInputs { columns, limit: COLUMNS_MAX });
        }
        let rows = sample(&with_class, (WORK_MAX / (columns * classes)).max(ROWS_MIN));
        encoding.centre(staged, &rows);
        let of = |which: &dyn Fn(usize) -> bool| Rows::of(staged, &encoding, &rows, which);
        let (fitted, held) = (Fitted::of(of(&|at| at % HELD != 0)), of(&|at| at % HELD == 0));
        let start = Weights {
            coefficients: DMatrix::zeros(columns, classes),
            intercepts: DVector::from_iterator(classes, rates.iter().map(|rate| rate.ln())),
        };
        let mut weights = start.clone();
        let mut best: Option<(f64, f64)> = None;
        for lambda in LAMBDAS {
            weights = weights.stepped(&fitted, lambda).ok_or(RidgeRefused::Singular)?;
            let loss = weights.loss(&held);
            if best.is_none_or(|(least, _)| loss < least) {
                best = Some((loss, lambda));
            }
        }
        let (_, lambda) = best.ok_or(RidgeRefused::Singular)?;
        let weights = start.stepped(&Fitted::of(of(&|_| true)), lambda).ok_or(RidgeRefused::Singular)?;
        let mut notes = vec![format!(
            "λ = {lambda} of the mean eigenvalue, by one row in {HELD} that the others were fitted without; {} rows, {columns} columns",
            rows.len()
        )];
        if rows.len() < with_class.len() {
            notes.push(format!("fitted to a random sample of {} of {} training rows", rows.len(), with_class.len()));
        }
        Ok((Self { encoding, weights }, notes))
    }

    /// Probabilities (classes, rows).
    pub(super) fn predict(&self, staged: &Staged, rows: &[usize]) -> DMatrix<f64> {
        self.weights.probabilities(&encode(staged, &self.encoding, rows))
    }
}

impl Rows {
    fn of(staged: &Staged, encoding: &Encoding, rows: &[usize], which: &dyn Fn(usize) -> bool) -> Self {
        let rows: Vec<usize> = rows.iter().enumerate().filter(|(at, _)| which(*at)).map(|(_, row)| *row).collect();
        let class = |class: usize, at: usize| f64::from(staged.y_row(rows[at])[class]);
        Self { inputs: encode(staged, encoding, &rows), classes: DMatrix::from_fn(staged.outputs(), rows.len(), class) }
    }
}

impl Fitted {
    fn of(rows: Rows) -> Self {
        Self { gram: &rows.inputs * rows.inputs.transpose(), rows }
    }
}

impl Weights {
    /// Softmax of the linear scores (classes, rows).
    fn probabilities(&self, inputs: &DMatrix<f64>) -> DMatrix<f64> {
        let mut told = self.coefficients.transpose() * inputs;
        for mut column in told.column_iter_mut() {
            column += &self.intercepts;
            let highest = column.max();
            column.apply(|score| *score = (*score - highest).exp());
            let sum = column.sum();
            column /= sum;
        }
        told
    }

    /// After steps to the least log-loss with `lambda`; `None` when the system cannot be inverted.
    fn stepped(mut self, Fitted { rows, gram }: &Fitted, lambda: f64) -> Option<Self> {
        let n = rows.inputs.ncols() as f64;
        let lambda = lambda * gram.trace() / gram.nrows() as f64;
        let mut system = gram * 0.5;
        (0..system.nrows()).for_each(|i| system[(i, i)] += lambda);
        let inverse = inverse(&system)?;
        for _ in 0..STEPS_MAX {
            let missed = &rows.classes - self.probabilities(&rows.inputs);
            let step = &inverse * (&rows.inputs * missed.transpose() - &self.coefficients * lambda);
            let shift = missed.column_sum() * (2.0 / n);
            self.coefficients += &step;
            self.intercepts += &shift;
            if step.amax().max(shift.amax()) < TOLERANCE {
                break;
            }
        }
        Some(self)
    }

    /// Mean log-loss.
    fn loss(&self, rows: &Rows) -> f64 {
        let told = self.probabilities(&rows.inputs).map(|p| p.max(PROBABILITY_MIN).ln());
        -told.dot(&rows.classes) / rows.inputs.ncols() as f64
    }
}
