//! Comparison of the model and the baselines on the same rows.
//!
//! **Invariant:** targets without a forecast of the model are excluded for all; rows are weighted by their weights.

use super::{forecaster::Forecaster, scores::Scores};
use enn_common::staged::Staged;

const BLOCK_ROWS: usize = 512;

#[derive(Debug, Clone, Copy)]
pub struct Trial<'a> {
    staged: &'a Staged,
    rows: &'a [usize],
    /// Index of each row's part, and the number of parts; `None` for a single part.
    parts: Option<(&'a [usize], usize)>,
    /// Forecasts of the model, shape (rows, O).
    forecasts: Option<&'a [f32]>,
}

impl<'a> Trial<'a> {
    pub fn new(staged: &'a Staged, rows: &'a [usize]) -> Self {
        Self { staged, rows, parts: None, forecasts: None }
    }

    /// Sets the model's forecasts, shape (rows, O).
    pub fn beside(self, forecasts: &'a [f32]) -> Self {
        Self { forecasts: Some(forecasts), ..self }
    }

    /// Divides the rows into `count` parts: the i-th row belongs to part `places[i]`.
    pub fn in_parts(self, places: &'a [usize], count: usize) -> Self {
        Self { parts: Some((places, count)), ..self }
    }

    /// Returns the model's scores by part; empty scores when its forecasts are not set.
    pub fn model(&self) -> Vec<Scores> {
        let mut scores = self.none();
        let forecasts = self.forecasts.unwrap_or_default().chunks_exact(self.staged.outputs().max(1));
        forecasts
            .enumerate()
            .for_each(|(at, forecasts)| self.add(&mut scores, at, forecasts.iter().map(|value| f64::from(*value))));
        scores
    }

    pub fn baseline(&self, one: &Forecaster) -> Vec<Scores> {
        let mut scores = self.none();
        let outputs = self.staged.outputs();
        for (block, rows) in self.rows.chunks(BLOCK_ROWS).enumerate() {
            for (at, forecast) in (block * BLOCK_ROWS..).zip(one.predict(self.staged, rows).column_iter()) {
                let forecasts = self.forecasts.map(|forecasts| &forecasts[at * outputs..(at + 1) * outputs]);
                let known = |cell: usize| forecasts.is_none_or(|forecasts| forecasts[cell].is_finite());
                let forecast = forecast.iter().enumerate();
                let forecast = forecast.map(|(cell, value)| if known(cell) { *value } else { f64::NAN });
                self.add(&mut scores, at, forecast);
            }
        }
        scores
    }

    /// Counts the valid targets, in rows with weight, without a forecast of the model.
    pub fn without_forecast(&self) -> u64 {
        let forecasts = self.forecasts.unwrap_or_default().chunks_exact(self.staged.outputs().max(1));
        let of = |(row, forecasts): (&usize, &[f32])| {
            let valid = self.staged.y_mask_row(*row).iter().zip(forecasts);
            valid.filter(|(valid, forecasts)| **valid != 0 && !forecasts.is_finite()).count() as u64
        };
        self.rows.iter().zip(forecasts).filter(|(row, _)| self.weight(**row) > 0.0).map(of).sum()
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
        scores[place].add(forecast, self.staged.y_row(row), self.staged.y_mask_row(row), self.weight(row));
    }
}
