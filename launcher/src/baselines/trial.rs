//! Forecasts of the same rows judged alike: the model's and the baselines'.
//!
//! **Invariant:** where the model has no forecast nobody is judged; rows count by their weights.

use super::{Forecaster, Scores};
use enn_common::staged::Staged;

/// Rows that a baseline predicts at once.
const BLOCK_ROWS: usize = 512;

/// Rows to be judged by.
#[derive(Debug, Clone, Copy)]
pub struct Trial<'a> {
    staged: &'a Staged,
    rows: &'a [usize],
    /// The part that each of the rows counts for, and how many there are; `None`: all for the only one.
    parts: Option<(&'a [usize], usize)>,
    /// The model's forecasts (rows, O).
    told: Option<&'a [f32]>,
}

impl<'a> Trial<'a> {
    /// All of these rows of the staged data together.
    pub fn new(staged: &'a Staged, rows: &'a [usize]) -> Self {
        Self { staged, rows, parts: None, told: None }
    }

    /// Beside the model's forecasts of the rows, (rows, O).
    pub fn beside(self, told: &'a [f32]) -> Self {
        Self { told: Some(told), ..self }
    }

    /// In so many parts: the i-th row counts for part `places[i]`.
    pub fn in_parts(self, places: &'a [usize], count: usize) -> Self {
        Self { parts: Some((places, count)), ..self }
    }

    /// The model's scores by part; nothing in them when its forecasts are not known.
    pub fn model(&self) -> Vec<Scores> {
        let mut scores = self.none();
        let told = self.told.unwrap_or_default().chunks_exact(self.staged.outputs().max(1));
        told.enumerate().for_each(|(at, told)| self.add(&mut scores, at, told.iter().map(|value| f64::from(*value))));
        scores
    }

    /// A baseline's scores by part.
    pub fn baseline(&self, one: &Forecaster) -> Vec<Scores> {
        let mut scores = self.none();
        let outputs = self.staged.outputs();
        for (block, rows) in self.rows.chunks(BLOCK_ROWS).enumerate() {
            for (at, forecast) in (block * BLOCK_ROWS..).zip(one.predict(self.staged, rows).column_iter()) {
                let told = self.told.map(|told| &told[at * outputs..(at + 1) * outputs]);
                let known = |cell: usize| told.is_none_or(|told| told[cell].is_finite());
                let forecast = forecast.iter().enumerate();
                let forecast = forecast.map(|(cell, value)| if known(cell) { *value } else { f64::NAN });
                self.add(&mut scores, at, forecast);
            }
        }
        scores
    }

    /// Valid targets of rows that count without a forecast of the model's.
    pub fn untold(&self) -> u64 {
        let told = self.told.unwrap_or_default().chunks_exact(self.staged.outputs().max(1));
        let of = |(row, told): (&usize, &[f32])| {
            let valid = self.staged.y_mask_row(*row).iter().zip(told);
            valid.filter(|(valid, told)| **valid != 0 && !told.is_finite()).count() as u64
        };
        self.rows.iter().zip(told).filter(|(row, _)| self.weight(**row) > 0.0).map(of).sum()
    }

    fn none(&self) -> Vec<Scores> {
        vec![Scores::new(self.staged.meta()); self.parts.map_or(1, |(_, count)| count)]
    }

    fn weight(&self, row: usize) -> f64 {
        self.staged.weight().get(row).copied().map_or(1.0, f64::from)
    }

    fn add(&self, scores: &mut [Scores], at: usize, forecast: impl Iterator<Item = f64>) {
        let row = self.rows[at];
        let place = self.parts.map_or(0, |(places, _)| places[at]);
        let targets = (self.staged.y_row(row), self.staged.y_mask_row(row));
        scores[place].add(forecast, targets, self.weight(row));
    }
}
