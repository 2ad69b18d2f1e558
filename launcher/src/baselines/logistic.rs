//! Multinomial logistic regression, λ chosen by what each fifth of the rows says of a fit to the others; of many rows, by what one says.
//!
//! The second derivative of the log-loss is nowhere more than half the Gram matrix of the inputs (Böhning 1992), so that
//! B ← B + (G/2 + λ)⁻¹ (X (Y − P)ᵀ − λ B) never makes the fit worse: one inverse for all steps, and every step is two products.
//! Steps are carried on as far as they go the same way (Nesterov 1983, with O'Donoghue and Candès' restarts), and each λ begins where the
//! stronger one ended.
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
const LAMBDAS: [f64; 11] = [1.0, 0.3, 0.1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5];
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
        let columns = encoding.columns();
        let classes = rates.len();
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
        let start = Weights {
            coefficients: DMatrix::zeros(columns, classes),
            intercepts: DVector::from_iterator(classes, rates.iter().map(|rate| rate.ln())),
        };
        let turns = if rows.len() * columns * classes * HELD <= WORK_MAX { HELD.min(rows.len()) } else { 1 };
        let mut losses = [0.0; LAMBDAS.len()];
        for turn in 0..turns {
            let held = of(&|at| at % HELD == turn);
            let path = Path::new(of(&|at| at % HELD != turn), &start);
            for (loss, weights) in losses.iter_mut().zip(path) {
                *loss += weights.ok_or(RidgeRefused::Singular)?.loss(&held);
            }
        }
        let best = (0..losses.len()).min_by(|a, b| losses[*a].total_cmp(&losses[*b])).unwrap_or_default();
        let all = Path::new(of(&|_| true), &start).nth(best);
        let weights = all.flatten().ok_or(RidgeRefused::Singular)?;
        let mut notes = vec![format!(
            "λ = {} of the mean eigenvalue, by {turns} of {HELD} parts of the rows that the others were fitted without; {} rows, {columns} columns",
            LAMBDAS[best],
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

/// Fits to the same rows, one for each λ.
struct Path {
    fitted: Fitted,
    weights: Option<Weights>,
    lambdas: std::array::IntoIter<f64, { LAMBDAS.len() }>,
}

impl Path {
    fn new(rows: Rows, start: &Weights) -> Self {
        let fitted = Fitted { gram: &rows.inputs * rows.inputs.transpose(), rows };
        Self { fitted, weights: Some(start.clone()), lambdas: LAMBDAS.into_iter() }
    }
}

impl Iterator for Path {
    /// `None` when the system cannot be inverted.
    type Item = Option<Weights>;

    fn next(&mut self) -> Option<Self::Item> {
        let lambda = self.lambdas.next()?;
        self.weights = self.weights.take().and_then(|weights| weights.stepped(&self.fitted, lambda));
        Some(self.weights.clone())
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
        let mut ahead = self.clone();
        let mut speed = 1.0_f64;
        for _ in 0..STEPS_MAX {
            let missed = &rows.classes - ahead.probabilities(&rows.inputs);
            let uphill = &rows.inputs * missed.transpose() - &ahead.coefficients * lambda;
            let rise = missed.column_sum();
            let next = Self {
                coefficients: &ahead.coefficients + &inverse * &uphill,
                intercepts: &ahead.intercepts + &rise * (2.0 / n),
            };
            let step = &next.coefficients - &self.coefficients;
            let shift = &next.intercepts - &self.intercepts;
            let turned = uphill.dot(&step) + rise.dot(&shift) < 0.0;
            let faster = if turned { 1.0 } else { f64::midpoint(1.0, (1.0 + 4.0 * speed * speed).sqrt()) };
            let carried = if turned { 0.0 } else { (speed - 1.0) / faster };
            ahead = Self {
                coefficients: &next.coefficients + &step * carried,
                intercepts: &next.intercepts + &shift * carried,
            };
            self = next;
            speed = faster;
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
