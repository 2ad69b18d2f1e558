//! Errors and spreads per output cell, summed over rows.
//!
//! **Invariant:** a cell counts only where its target is valid; sums are f64.

use crate::baselines::Forecaster;
use enn_common::{
    metrics::Metrics,
    staged::{Moments, Staged},
};

/// Rows that a baseline predicts at once.
const BLOCK_ROWS: usize = 512;

/// Absolute and squared errors of every cell, and how far its targets and its forecasts spread.
#[derive(Debug, Clone, PartialEq)]
pub struct Scores {
    absolute: Vec<f64>,
    squared: Vec<f64>,
    targets: Vec<Moments>,
    forecasts: Vec<Moments>,
}

impl Scores {
    /// No rows yet.
    pub fn new(cells: usize) -> Self {
        let none = vec![Moments::default(); cells];
        Self { absolute: vec![0.0; cells], squared: vec![0.0; cells], targets: none.clone(), forecasts: none }
    }

    /// Takes one row in: its forecast, its targets and their validity, each of one value per cell.
    pub fn add(&mut self, forecast: impl Iterator<Item = f64>, target: &[f32], valid: &[u8]) {
        for (cell, ((forecast, target), valid)) in forecast.zip(target).zip(valid).enumerate() {
            if *valid != 0 {
                let error = forecast - f64::from(*target);
                self.absolute[cell] += error.abs();
                self.squared[cell] += error * error;
                self.targets[cell].push(f64::from(*target));
                self.forecasts[cell].push(forecast);
            }
        }
    }

    /// Takes other rows' scores in.
    pub fn merge(&mut self, other: &Self) {
        self.absolute.iter_mut().zip(&other.absolute).for_each(|(sum, more)| *sum += more);
        self.squared.iter_mut().zip(&other.squared).for_each(|(sum, more)| *sum += more);
        self.targets.iter_mut().zip(&other.targets).for_each(|(sum, more)| sum.merge(more));
        self.forecasts.iter_mut().zip(&other.forecasts).for_each(|(sum, more)| sum.merge(more));
    }

    /// Scores of a baseline: rows[i] of the staged data count for place[i] of the `parts` that are returned.
    pub fn of_baseline(
        one: &Forecaster,
        staged: &Staged,
        (rows, places): (&[usize], &[usize]),
        parts: usize,
    ) -> Vec<Self> {
        let mut scores = vec![Self::new(staged.outputs()); parts];
        for (rows, places) in rows.chunks(BLOCK_ROWS).zip(places.chunks(BLOCK_ROWS)) {
            let forecasts = one.predict(staged, rows);
            for ((row, place), forecast) in rows.iter().zip(places).zip(forecasts.column_iter()) {
                scores[*place].add(forecast.iter().copied(), staged.y_row(*row), staged.y_mask_row(*row));
            }
        }
        scores
    }

    /// Errors over the cells that `counts` names; `None` when none of their targets was valid. R² is about the mean of all
    /// their targets.
    pub fn over(&self, counts: impl Fn(usize) -> bool) -> Option<Metrics> {
        let (mut absolute, mut squared, mut targets) = (0.0, 0.0, Moments::default());
        for cell in (0..self.absolute.len()).filter(|cell| counts(*cell)) {
            absolute += self.absolute[cell];
            squared += self.squared[cell];
            targets.merge(&self.targets[cell]);
        }
        let n = targets.n() as f64;
        let about_mean = targets.stats().std.powi(2) * n;
        (targets.n() > 0).then(|| Metrics {
            mae: absolute / n,
            rmse: (squared / n).sqrt(),
            r2: 1.0 - squared / about_mean,
            n: targets.n(),
            loss: f64::NAN,
            interval: None,
            accuracy: None,
        })
    }

    /// Spread of the forecasts over spread of the targets, median over the cells whose targets vary: 0 is a forecast that does
    /// not depend on the row. `None` when no cell varies.
    pub fn reactivity(&self) -> Option<f64> {
        let spreads = self.forecasts.iter().zip(&self.targets).map(|(told, held)| (told.stats().std, held.stats().std));
        let mut ratios: Vec<f64> = spreads.filter(|(_, held)| *held > 0.0).map(|(told, held)| told / held).collect();
        ratios.sort_by(f64::total_cmp);
        let middle = ratios.len() / 2;
        match ratios.len() {
            0 => None,
            n if n % 2 == 1 => Some(ratios[middle]),
            _ => Some((ratios[middle - 1] + ratios[middle]) / 2.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_agree_with_their_definitions() {
        let mut scores = Scores::new(2);
        scores.add([1.0, 9.0].into_iter(), &[2.0, 0.0], &[1, 0]);
        let mut more = Scores::new(2);
        more.add([2.0, 3.0].into_iter(), &[4.0, 3.0], &[1, 1]);
        scores.merge(&more);
        // Cell 0: errors −1, −2 about targets 2, 4; cell 1: exact, once.
        let all = scores.over(|_| true).unwrap();
        assert_eq!((all.mae, all.n), (1.0, 3));
        assert!((all.rmse - (5.0f64 / 3.0).sqrt()).abs() < 1e-12);
        // Targets 2, 4, 3: squares about their mean are 2.
        assert!((all.r2 - (1.0 - 5.0 / 2.0)).abs() < 1e-12, "{}", all.r2);
        assert_eq!(scores.over(|cell| cell == 1).unwrap().mae, 0.0);
        // Only cell 0 varies: 0.5 over 1.
        assert_eq!(scores.reactivity(), Some(0.5));
        assert_eq!((Scores::new(1).over(|_| true), Scores::new(1).reactivity()), (None, None));
    }
}
