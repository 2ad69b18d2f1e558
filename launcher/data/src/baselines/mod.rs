//! Baselines that a model must beat: the mean of each cell, persistence, climatology, ridge regression, and, where there are
//! categories, kernel ridge on all their crosses. For classes: their relative frequencies, and logistic regression.
//!
//! Every baseline is fitted twice: to the training rows, to be scored on validation rows, and to the training and validation rows, as a
//! user would who has chosen it, to be scored on test rows. Errors are in the target's unit, over valid cells only and weighted by the
//! rows' weights, which the fits ignore. A baseline that cannot be computed is absent, with the reason in the notes.
//!
//! **Invariant:** no row that a baseline is scored on enters its fit; the same staged directory gives the same numbers.

mod cell_means;
mod classes;
mod encoding;
pub mod error;
mod forecaster;
mod logistic;
mod ridge;
mod scores;
mod trial;

pub use classes::classes;
pub use error::BaselineError;
pub use forecaster::Forecaster;
pub use scores::Scores;
pub use trial::Trial;

use cell_means::cell_means;
use encoding::Encoding;
use enn_common::{
    metrics::Metrics,
    staged::{Split, Staged},
};
use error::FitError;
use logistic::Logistic;
use ridge::{KernelRidge, Ridge};
use std::{collections::BTreeMap, path::Path};

/// Splits that baselines are scored on, with the splits that they are then fitted to.
const SCORED: [(Split, &[Split]); 2] = [(Split::Val, &[Split::Train]), (Split::Test, &[Split::Train, Split::Val])];

#[derive(Debug)]
pub struct Baselines {
    /// Split ("val", "test") → baseline ("cell_mean", "ridge", …) → errors in target units.
    pub split: BTreeMap<String, BTreeMap<String, Metrics>>,
    /// Sentences about what was chosen, sampled or left out.
    pub notes: Vec<String>,
    /// The baselines fitted to training and validation rows, for plots of test rows.
    pub forecasters: Vec<Forecaster>,
    /// Split → baseline → errors of every cell.
    pub cells: BTreeMap<String, BTreeMap<String, Scores>>,
}

impl Baselines {
    /// Adds the notes of baselines that were refitted to `rows` rows, where they differ.
    fn note_refit(&mut self, notes: Vec<String>, rows: usize) {
        let new = notes.into_iter().filter(|note| !self.notes.contains(note));
        let new: Vec<String> = new.map(|note| format!("{note} (for the test split)")).collect();
        self.notes.extend(new);
        self.notes.push(format!(
            "for the validation split they are fitted to the training rows, for the test split to the {rows} rows of training and validation"
        ));
    }

    pub fn weigh(&mut self, weights: &[f64]) {
        let total = |(name, scores): (&String, &Scores)| Some((name.clone(), scores.over(|at| weights[at])?));
        let of_split = |(split, cells): (&String, &BTreeMap<String, Scores>)| {
            (split.clone(), cells.iter().filter_map(total).collect())
        };
        self.split = self.cells.iter().map(of_split).collect();
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    Full,
    /// Baselines that need one pass over the rows: no regressions.
    OnePass,
}

/// Returns the rows of some splits, ascending.
pub fn rows_of(staged: &Staged, splits: &[Split]) -> Vec<usize> {
    let is_in = |code: u8| splits.iter().any(|split| *split as u8 == code);
    (0..staged.rows()).filter(|row| is_in(staged.split()[*row])).collect()
}

/// Fits and scores the baselines of the staged directory `staged`.
///
/// # Errors
/// The directory is incomplete, has no targets, or has no training rows.
pub fn compute(staged: &Path, effort: Effort) -> Result<Baselines, BaselineError> {
    compute_of(&Staged::open(staged)?, effort)
}

/// Fits and scores the baselines of an open staged directory.
///
/// # Errors
/// The directory has no targets or no training rows.
pub fn compute_of(staged: &Staged, effort: Effort) -> Result<Baselines, BaselineError> {
    let train = rows_of(staged, &[Split::Train]);
    let (forecasters, notes) = fit_to(staged, &train, effort)?;
    let mut baselines = Baselines { split: BTreeMap::new(), notes, forecasters, cells: BTreeMap::new() };
    let mut fitted = train.len();
    for (split, known) in SCORED {
        let rows = rows_of(staged, &[split]);
        let known = rows_of(staged, known);
        if rows.is_empty() {
            continue;
        }
        if known.len() > fitted {
            let (forecasters, notes) = fit_to(staged, &known, effort)?;
            baselines.forecasters = forecasters;
            baselines.note_refit(notes, known.len());
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

/// Fits the baselines to `rows` of staged data; also returns notes.
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
        let mut own_notes = Vec::new();
        let encoding = Encoding::new(staged, train, &mut own_notes);
        match Logistic::fit(staged, encoding, train, &rates) {
            Ok((logistic, more)) => {
                own_notes.extend(more);
                all.push(Forecaster::Logistic(Box::new(logistic)));
            }
            Err(error) => own_notes.push(format!("left out: {error}")),
        }
        notes.extend(own_notes.into_iter().map(|note| format!("logistic: {note}")));
    }
    all
}

/// Returns the relative frequencies of the classes in training rows, with half a row more of each, so that no class has frequency 0.
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
    let mut take = |name: &str, fitted: Result<(Forecaster, Vec<String>), FitError>| match fitted {
        Ok((forecaster, own_notes)) => {
            notes.extend(own_notes.into_iter().map(|note| format!("{name}: {note}")));
            all.push(forecaster);
        }
        Err(error) => notes.push(format!("{name}: left out: {error}")),
    };
    if let Some(encoding) = Encoding::of_calendar(staged, train) {
        let fitted = Ridge::fit(staged, encoding, train, &means);
        take("climatology", fitted.map(|(ridge, notes)| (Forecaster::Climatology(Box::new(ridge)), notes)));
    }
    let mut left_out = Vec::new();
    let encoding = Encoding::new(staged, train, &mut left_out);
    let fitted = Ridge::fit(staged, encoding, train, &means);
    take("ridge", fitted.map(|(ridge, notes)| (Forecaster::Ridge(Box::new(ridge)), [left_out, notes].concat())));
    if staged.meta().features.iter().any(|feature| !feature.categories.is_empty()) {
        let fitted = KernelRidge::fit(staged, train, &means);
        take("kernel ridge", fitted.map(|(ridge, notes)| (Forecaster::KernelRidge(Box::new(ridge)), notes)));
    }
    all
}

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod tests;
