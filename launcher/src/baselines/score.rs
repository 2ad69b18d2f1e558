//! Errors per output cell, summed over rows.
//!
//! **Invariant:** a cell counts only where its target is valid; sums are f64.

use enn_common::metrics::Baseline;

/// Absolute and squared errors of every cell.
#[derive(Debug, Clone, PartialEq)]
pub struct CellErrors {
    absolute: Vec<f64>,
    squared: Vec<f64>,
    n: Vec<u64>,
}

impl CellErrors {
    /// No rows yet.
    pub fn new(cells: usize) -> Self {
        Self { absolute: vec![0.0; cells], squared: vec![0.0; cells], n: vec![0; cells] }
    }

    /// Takes one row in: its forecast, its targets and their validity, each of one value per cell.
    pub fn add(&mut self, forecast: impl Iterator<Item = f64>, target: &[f32], valid: &[u8]) {
        for (cell, ((forecast, target), valid)) in forecast.zip(target).zip(valid).enumerate() {
            if *valid != 0 {
                let error = forecast - f64::from(*target);
                self.absolute[cell] += error.abs();
                self.squared[cell] += error * error;
                self.n[cell] += 1;
            }
        }
    }

    /// Mean absolute error of every cell; NaN where no target was valid.
    pub fn mae(&self) -> Vec<f64> {
        self.absolute.iter().zip(&self.n).map(|(sum, n)| sum / *n as f64).collect()
    }

    /// Errors over all cells; `None` when no target was valid.
    pub fn total(&self) -> Option<Baseline> {
        let n = self.n.iter().sum::<u64>();
        let mean = |sums: &[f64]| sums.iter().sum::<f64>() / n as f64;
        (n > 0).then(|| Baseline { mae: mean(&self.absolute), rmse: mean(&self.squared).sqrt() })
    }
}
