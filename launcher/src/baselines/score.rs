//! Errors per output cell, summed over rows.
//!
//! **Invariant:** a cell counts only where its target is valid; sums are f64.

use enn_common::{
    metrics::{Baseline, Metrics},
    staged::Moments,
};

/// Absolute and squared errors of every cell, and how far its targets and its forecasts spread.
#[derive(Debug, Clone, PartialEq)]
pub struct CellErrors {
    absolute: Vec<f64>,
    squared: Vec<f64>,
    targets: Vec<Moments>,
    forecasts: Vec<Moments>,
}

impl CellErrors {
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

    /// Mean absolute error of every cell; NaN where no target was valid.
    pub fn mae(&self) -> Vec<f64> {
        self.absolute.iter().zip(&self.targets).map(|(sum, targets)| sum / targets.n() as f64).collect()
    }

    /// Errors over all cells; `None` when no target was valid.
    pub fn total(&self) -> Option<Baseline> {
        self.over(|_| true).map(|metrics| Baseline { mae: metrics.mae, rmse: metrics.rmse })
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
        })
    }

    /// Spread of the forecasts over spread of the targets, median over the cells whose targets vary: 0 is a forecast that does
    /// not depend on the row. `None` when no cell varies.
    pub fn reactivity(&self) -> Option<f64> {
        let spreads =
            self.forecasts.iter().zip(&self.targets).map(|(told, true_)| (told.stats().std, true_.stats().std));
        let mut ratios: Vec<f64> =
            spreads.filter(|(_, true_)| *true_ > 0.0).map(|(told, true_)| told / true_).collect();
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
        let mut errors = CellErrors::new(2);
        errors.add([1.0, 9.0].into_iter(), &[2.0, 0.0], &[1, 0]);
        errors.add([2.0, 3.0].into_iter(), &[4.0, 3.0], &[1, 1]);
        // Cell 0: errors −1, −2 about targets 2, 4; cell 1: exact, once.
        let all = errors.over(|_| true).unwrap();
        assert_eq!((all.mae, all.n), (1.0, 3));
        assert!((all.rmse - (5.0f64 / 3.0).sqrt()).abs() < 1e-12);
        // Targets 2, 4, 3: squares about the mean are 2.
        assert!((all.r2 - (1.0 - 5.0 / 2.0)).abs() < 1e-12, "{}", all.r2);
        assert_eq!(errors.over(|cell| cell == 1).unwrap().mae, 0.0);
        // Only cell 0 varies: 0.5 over 1.
        assert_eq!(errors.reactivity(), Some(0.5));
        assert_eq!(CellErrors::new(1).over(|_| true), None);
        assert_eq!(CellErrors::new(1).reactivity(), None);
    }
}
