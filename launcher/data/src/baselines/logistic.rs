//! Multinomial logistic regression. λ has the least log-loss in five-fold cross-validation; of many rows only one fold is held out.
//!
//! The second derivative of the log-loss is nowhere more than half the Gram matrix of the inputs (Böhning 1992), so that
//! B ← B + (G/2 + λ)⁻¹ (X (Y − P)ᵀ − λ B) never makes the fit worse: one inverse for all steps, and every step is two products.
//! Steps are accelerated (Nesterov 1983, with the restarts of O'Donoghue and Candès), and each λ starts from the solution of the next
//! larger one.
//!
//! **Invariant:** work is bounded by the constants below; sums run in a fixed order, so results are reproducible.

use super::{
    encoding::Encoding,
    error::FitError,
    ridge::{encode, sample, shifted_inverse},
    scores::PROBABILITY_MIN,
};
use enn_common::staged::Staged;
use nalgebra::{DMatrix, DVector};

/// Maximum rows × columns × classes; of more rows a sample is fitted.
const WORK_MAX: usize = 20_000_000;
const ROWS_MIN: usize = 256;
/// Maximum columns, which bounds the columns × columns Gram matrix.
const COLUMNS_MAX: usize = 2_000;
/// Maximum steps, and the largest change of a coefficient at which steps end.
const STEPS_MAX: usize = 100;
const TOLERANCE: f64 = 1e-4;
/// Values of λ relative to the mean eigenvalue of the Gram matrix, largest first.
const LAMBDAS: [f64; 11] = [1.0, 0.3, 0.1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5];
const FOLDS: usize = 5;

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

/// Inputs (columns, rows) and one-hot classes (classes, rows).
struct LabelledRows {
    inputs: DMatrix<f64>,
    classes: DMatrix<f64>,
}

/// Rows to fit, and the Gram matrix of their inputs, which does not depend on λ.
struct Fitted {
    rows: LabelledRows,
    gram: DMatrix<f64>,
}

impl Logistic {
    /// Fits the rows of `train` that have a class; `rates` are the relative frequencies of the classes. Returns the fit and notes.
    pub(super) fn fit(
        staged: &Staged,
        mut encoding: Encoding,
        train: &[usize],
        rates: &[f64],
    ) -> Result<(Self, Vec<String>), FitError> {
        let with_class: Vec<usize> =
            train.iter().copied().filter(|row| staged.y_mask_row(*row).first() == Some(&1)).collect();
        let columns = encoding.columns();
        let classes = rates.len();
        if with_class.len() < 3 {
            return Err(FitError::FewRows { rows: with_class.len() });
        }
        if columns == 0 {
            return Err(FitError::NoColumns);
        }
        if columns > COLUMNS_MAX {
            return Err(FitError::ManyInputs { columns, limit: COLUMNS_MAX });
        }
        let rows = sample(&with_class, (WORK_MAX / (columns * classes)).max(ROWS_MIN));
        encoding.centre(staged, &rows);
        let of = |which: &dyn Fn(usize) -> bool| LabelledRows::of(staged, &encoding, &rows, which);
        let start = Weights {
            coefficients: DMatrix::zeros(columns, classes),
            intercepts: DVector::from_iterator(classes, rates.iter().map(|rate| rate.ln())),
        };
        let folds = if rows.len() * columns * classes * FOLDS <= WORK_MAX { FOLDS.min(rows.len()) } else { 1 };
        let mut losses = [0.0; LAMBDAS.len()];
        for fold in 0..folds {
            let held_out = of(&|at| at % FOLDS == fold);
            let path = RegularizationPath::new(of(&|at| at % FOLDS != fold), &start);
            for (loss, weights) in losses.iter_mut().zip(path) {
                *loss += weights.ok_or(FitError::Singular)?.loss(&held_out);
            }
        }
        let best = (0..losses.len()).min_by(|a, b| losses[*a].total_cmp(&losses[*b])).unwrap_or_default();
        let all = RegularizationPath::new(of(&|_| true), &start).nth(best);
        let weights = all.flatten().ok_or(FitError::Singular)?;
        let mut notes = vec![format!(
            "λ = {} of the mean eigenvalue, by cross-validation over {folds} of {FOLDS} folds; {} rows, {columns} columns",
            LAMBDAS[best],
            rows.len()
        )];
        if rows.len() < with_class.len() {
            notes.push(format!("fitted to a random sample of {} of {} training rows", rows.len(), with_class.len()));
        }
        Ok((Self { encoding, weights }, notes))
    }

    /// Returns probabilities of shape (classes, rows).
    pub(super) fn predict(&self, staged: &Staged, rows: &[usize]) -> DMatrix<f64> {
        self.weights.probabilities(&encode(staged, &self.encoding, rows))
    }
}

impl LabelledRows {
    fn of(staged: &Staged, encoding: &Encoding, rows: &[usize], which: &dyn Fn(usize) -> bool) -> Self {
        let rows: Vec<usize> = rows.iter().enumerate().filter(|(at, _)| which(*at)).map(|(_, row)| *row).collect();
        let class = |class: usize, at: usize| f64::from(staged.y_row(rows[at])[class]);
        Self { inputs: encode(staged, encoding, &rows), classes: DMatrix::from_fn(staged.outputs(), rows.len(), class) }
    }
}

/// Iterates over the fits to the same rows, one for each λ.
struct RegularizationPath {
    fitted: Fitted,
    weights: Option<Weights>,
    lambdas: std::array::IntoIter<f64, { LAMBDAS.len() }>,
}

impl RegularizationPath {
    fn new(rows: LabelledRows, start: &Weights) -> Self {
        let fitted = Fitted { gram: &rows.inputs * rows.inputs.transpose(), rows };
        Self { fitted, weights: Some(start.clone()), lambdas: LAMBDAS.into_iter() }
    }
}

impl Iterator for RegularizationPath {
    /// The fit for the next λ; `None` when the system cannot be inverted.
    type Item = Option<Weights>;

    fn next(&mut self) -> Option<Self::Item> {
        let lambda = self.lambdas.next()?;
        self.weights = self.weights.take().and_then(|weights| weights.stepped(&self.fitted, lambda));
        Some(self.weights.clone())
    }
}

impl Weights {
    /// Returns the softmax of the linear scores, shape (classes, rows).
    fn probabilities(&self, inputs: &DMatrix<f64>) -> DMatrix<f64> {
        let mut scores = self.coefficients.transpose() * inputs;
        for mut column in scores.column_iter_mut() {
            column += &self.intercepts;
            let highest = column.max();
            column.apply(|score| *score = (*score - highest).exp());
            let sum = column.sum();
            column /= sum;
        }
        scores
    }

    /// Minimises the log-loss with penalty `lambda` from these weights; `None` when the system cannot be inverted.
    fn stepped(mut self, fitted: &Fitted, lambda: f64) -> Option<Self> {
        let Fitted { rows, gram } = fitted;
        let n = rows.inputs.ncols() as f64;
        let lambda = lambda * gram.trace() / gram.nrows() as f64;
        let inverse = shifted_inverse(gram * 0.5, lambda)?;
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
            let momentum = if turned { 0.0 } else { (speed - 1.0) / faster };
            ahead = Self {
                coefficients: &next.coefficients + &step * momentum,
                intercepts: &next.intercepts + &shift * momentum,
            };
            self = next;
            speed = faster;
            if step.amax().max(shift.amax()) < TOLERANCE {
                break;
            }
        }
        Some(self)
    }

    fn loss(&self, rows: &LabelledRows) -> f64 {
        let logarithms = self.probabilities(&rows.inputs).map(|p| p.max(PROBABILITY_MIN).ln());
        -logarithms.dot(&rows.classes) / rows.inputs.ncols() as f64
    }
}
