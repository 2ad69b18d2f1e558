//! What a model must beat: the mean of each cell, the value of yesterday, what the calendar says, ridge regression, and where there
//! are categories kernel ridge on all their crosses. Of classes: how often each occurs, and logistic regression.
//!
//! Every baseline is fitted twice: to the training rows, to be judged on validation rows, and to the training and validation rows, as a
//! user would who has chosen it, to be judged on test rows. It is judged in the target's unit, over valid cells only and by the rows'
//! weights, which the fits do not look at. One that cannot be computed is absent, with the reason in the notes.
//!
//! **Invariant:** nothing of a row that a baseline is judged on enters its fit; the same staged directory gives the same numbers.

mod classes;
mod encoding;
pub mod error;
mod logistic;
mod ridge;
mod scores;
mod trial;

pub use classes::classes;
pub use error::BaselineError;
pub use scores::Scores;
pub use trial::Trial;

use encoding::Encoding;
use enn_common::{
    metrics::Metrics,
    staged::{Split, Staged},
};
use error::RidgeRefused;
use logistic::Logistic;
use nalgebra::DMatrix;
use ridge::{KernelRidge, Ridge};
use std::{collections::BTreeMap, path::Path};

/// Splits that baselines are judged on, and the rows that they are fitted to for that.
const JUDGED: [(Split, &[Split]); 2] = [(Split::Val, &[Split::Train]), (Split::Test, &[Split::Train, Split::Val])];

/// All baselines of a staged directory.
#[derive(Debug)]
pub struct Baselines {
    /// Split ("val", "test") → baseline ("cell_mean", "ridge", …) → errors in target units.
    pub split: BTreeMap<String, BTreeMap<String, Metrics>>,
    /// Sentences for people: what was chosen, sampled or left out.
    pub notes: Vec<String>,
    /// The baselines fitted to training and validation rows, for plots of test rows.
    pub forecasters: Vec<Forecaster>,
    /// Split → baseline → errors of every cell.
    pub cells: BTreeMap<String, BTreeMap<String, Scores>>,
}

impl Baselines {
    /// Adds what baselines that were fitted to more rows say of themselves, where it is something else.
    fn note_again(&mut self, notes: Vec<String>, rows: usize) {
        let new = notes.into_iter().filter(|note| !self.notes.contains(note));
        let new: Vec<String> = new.map(|note| format!("{note} (for the test split)")).collect();
        self.notes.extend(new);
        self.notes.push(format!(
            "for the validation split they are fitted to the training rows, for the test split to the {rows} rows of training and validation"
        ));
    }

    /// Lets every cell count by its weight in the errors over all cells.
    pub fn weigh(&mut self, weights: &[f64]) {
        let total = |(name, scores): (&String, &Scores)| Some((name.clone(), scores.over(|at| weights[at])?));
        let of_split = |(split, cells): (&String, &BTreeMap<String, Scores>)| {
            (split.clone(), cells.iter().filter_map(total).collect())
        };
        self.split = self.cells.iter().map(of_split).collect();
    }
}

/// How much may be computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// Every baseline.
    Full,
    /// Only those that need one pass: not ridge.
    OnePass,
}

/// A fitted baseline.
#[derive(Debug)]
pub enum Forecaster {
    /// The mean of each cell over valid training rows.
    CellMean(Vec<f64>),
    /// The input column that holds each cell's value one period earlier; the cell's mean where that is missing.
    Persistence {
        /// Input column per cell.
        columns: Vec<u32>,
        /// Fallback per cell.
        means: Vec<f64>,
    },
    /// Linear in the calendar.
    Climatology(Box<Ridge>),
    /// Linear in all inputs.
    Ridge(Box<Ridge>),
    /// Linear in all crosses of the categories.
    KernelRidge(Box<KernelRidge>),
    /// How often each class occurs, about half a row more.
    ClassRates(Vec<f64>),
    /// Probabilities of classes, their logarithms linear in all inputs.
    Logistic(Box<Logistic>),
}

impl Forecaster {
    /// Key in the metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::CellMean(_) => "cell_mean",
            Self::Persistence { .. } => "persistence",
            Self::Climatology(_) => "climatology",
            Self::Ridge(_) => "ridge",
            Self::KernelRidge(_) => "kernel_ridge",
            Self::ClassRates(_) => "class_rates",
            Self::Logistic(_) => "logistic",
        }
    }

    /// Forecasts of some rows, (O, rows) in target units: one column per row, in the order given.
    pub fn predict(&self, staged: &Staged, rows: &[usize]) -> DMatrix<f64> {
        match self {
            Self::CellMean(means) | Self::ClassRates(means) => {
                DMatrix::from_fn(means.len(), rows.len(), |cell, _| means[cell])
            }
            Self::Persistence { columns, means } => DMatrix::from_fn(means.len(), rows.len(), |cell, index| {
                let column = columns[cell] as usize;
                let valid = staged.x_mask_row(rows[index])[column] != 0;
                if valid { f64::from(staged.x_row(rows[index])[column]) } else { means[cell] }
            }),
            Self::Ridge(ridge) | Self::Climatology(ridge) => ridge.predict(staged, rows),
            Self::KernelRidge(ridge) => ridge.predict(staged, rows),
            Self::Logistic(logistic) => logistic.predict(staged, rows),
        }
    }
}

/// Rows of some splits, ascending.
pub fn rows_of(staged: &Staged, splits: &[Split]) -> Vec<usize> {
    let is_in = |code: u8| splits.iter().any(|split| *split as u8 == code);
    (0..staged.rows()).filter(|row| is_in(staged.split()[*row])).collect()
}

/// Fits and judges the baselines of the staged directory `staged`.
///
/// # Errors
/// The directory is not whole, has no targets, or has no training rows.
pub fn compute(staged: &Path, effort: Effort) -> Result<Baselines, BaselineError> {
    compute_of(&Staged::open(staged)?, effort)
}

/// As [`compute`], of an open directory.
///
/// # Errors
/// The directory has no targets or no training rows.
pub fn compute_of(staged: &Staged, effort: Effort) -> Result<Baselines, BaselineError> {
    let train = rows_of(staged, &[Split::Train]);
    let (forecasters, notes) = fit_to(staged, &train, effort)?;
    let mut baselines = Baselines { split: BTreeMap::new(), notes, forecasters, cells: BTreeMap::new() };
    let mut fitted = train.len();
    for (split, known) in JUDGED {
        let rows = rows_of(staged, &[split]);
        let known = rows_of(staged, known);
        if rows.is_empty() {
            continue;
        }
        if known.len() > fitted {
            let (forecasters, notes) = fit_to(staged, &known, effort)?;
            baselines.forecasters = forecasters;
            baselines.note_again(notes, known.len());
            fitted = known.len();
        }
        let trial = Trial::new(staged, &rows);
        let of = |one: &Forecaster| (one.name().to_owned(), trial.baseline(one).swap_remove(0));
        let cells: BTreeMap<String, Scores> = baselines.forecasters.iter().map(of).collect();
        let total = |(name, scores): (&String, &Scores)| Some((name.clone(), scores.total()?));
        baselines.split.insert(split.name().to_owned(), cells.iter().filter_map(total).collect());
        baselines.cells.insert(split.name().to_owned(), cells);
    }
    Ok(baselines)
}

/// Every baseline, fitted to `rows` of staged data, and notes for people.
///
/// # Errors
/// The data have no targets, or there are no rows.
pub fn fit_to(
    staged: &Staged,
    rows: &[usize],
    effort: Effort,
) -> Result<(Vec<Forecaster>, Vec<String>), BaselineError> {
    let path = || staged.dir().to_path_buf();
    if !staged.meta().has_targets {
        return Err(BaselineError::NoTargets { path: path() });
    }
    if rows.is_empty() {
        return Err(BaselineError::NoTraining { path: path() });
    }
    let mut notes = Vec::new();
    let fit = if staged.meta().has_classes { fit_classes } else { fit };
    let forecasters = fit(staged, rows, effort, &mut notes);
    Ok((forecasters, notes))
}

fn fit_classes(staged: &Staged, train: &[usize], effort: Effort, notes: &mut Vec<String>) -> Vec<Forecaster> {
    let rates = class_rates(staged, train);
    let mut all = vec![Forecaster::ClassRates(rates.clone())];
    if effort == Effort::Full {
        let mut told = Vec::new();
        let encoding = Encoding::new(staged, train, &mut told);
        match Logistic::fit(staged, encoding, train, &rates) {
            Ok((logistic, more)) => {
                told.extend(more);
                all.push(Forecaster::Logistic(Box::new(logistic)));
            }
            Err(refused) => told.push(format!("left out: {refused}")),
        }
        notes.extend(told.into_iter().map(|note| format!("logistic: {note}")));
    }
    all
}

/// The share of every class of the training rows that have one, with half a row more of each, so that none is impossible.
fn class_rates(staged: &Staged, train: &[usize]) -> Vec<f64> {
    let mut counts = vec![0.5; staged.outputs()];
    for row in train.iter().filter(|row| staged.y_mask_row(**row).first() == Some(&1)) {
        counts.iter_mut().zip(staged.y_row(*row)).for_each(|(count, is)| *count += f64::from(*is));
    }
    let all: f64 = counts.iter().sum();
    counts.iter().map(|count| count / all).collect()
}

fn fit(staged: &Staged, train: &[usize], effort: Effort, notes: &mut Vec<String>) -> Vec<Forecaster> {
    let means = cell_means(staged, train);
    let mut all = vec![Forecaster::CellMean(means.clone())];
    match &staged.meta().persistence {
        Some(columns) => all.push(Forecaster::Persistence { columns: columns.clone(), means: means.clone() }),
        None => notes.push("persistence: no input holds the target's value one period earlier".to_owned()),
    }
    if effort == Effort::OnePass {
        return all;
    }
    let mut take = |name: &str, fitted: Result<(Forecaster, Vec<String>), RidgeRefused>| match fitted {
        Ok((forecaster, told)) => {
            notes.extend(told.into_iter().map(|note| format!("{name}: {note}")));
            all.push(forecaster);
        }
        Err(refused) => notes.push(format!("{name}: left out: {refused}")),
    };
    if let Some(encoding) = Encoding::of_calendar(staged, train) {
        let fitted = Ridge::fit(staged, encoding, train, &means);
        take("climatology", fitted.map(|(ridge, told)| (Forecaster::Climatology(Box::new(ridge)), told)));
    }
    let mut left_out = Vec::new();
    let encoding = Encoding::new(staged, train, &mut left_out);
    let fitted = Ridge::fit(staged, encoding, train, &means);
    take("ridge", fitted.map(|(ridge, told)| (Forecaster::Ridge(Box::new(ridge)), [left_out, told].concat())));
    if staged.meta().features.iter().any(|feature| !feature.categories.is_empty()) {
        let fitted = KernelRidge::fit(staged, train, &means);
        take("kernel ridge", fitted.map(|(ridge, told)| (Forecaster::KernelRidge(Box::new(ridge)), told)));
    }
    all
}

/// The mean of every cell over valid training rows; a cell that was never seen gets the mean of those that were.
fn cell_means(staged: &Staged, train: &[usize]) -> Vec<f64> {
    let mut sums = vec![(0.0, 0u64); staged.outputs()];
    for row in train {
        for ((sum, n), (value, valid)) in sums.iter_mut().zip(staged.y_row(*row).iter().zip(staged.y_mask_row(*row))) {
            if *valid != 0 {
                *sum += f64::from(*value);
                *n += 1;
            }
        }
    }
    let seen: Vec<f64> = sums.iter().filter(|(_, n)| *n > 0).map(|(sum, n)| sum / *n as f64).collect();
    let overall = seen.iter().sum::<f64>() / seen.len().max(1) as f64;
    sums.iter().map(|(sum, n)| if *n > 0 { sum / *n as f64 } else { overall }).collect()
}

#[cfg(test)]
pub(crate) mod tests;
