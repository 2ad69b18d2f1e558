//! Errors per output cell, summed over rows.
//!
//! **Invariant:** a cell counts only where its target is valid; sums are f64.

use enn_common::metrics::Baseline;

/// Absolute and squared errors of every cell.
#[derive(Debug, Clone, PartialEq)]
pub struct CellErrors {
    absolute: Vec<f64>,
    squared: Vec<f64>,
    /// Sums of weights: numbers of valid cells where rows have none.
    n: Vec<f64>,
}

impl CellErrors {
    /// No rows yet.
    pub fn new(cells: usize) -> Self {
        Self { absolute: vec![0.0; cells], squared: vec![0.0; cells], n: vec![0.0; cells] }
    }

    /// Takes one row in: its forecast, its targets and their validity, each of one value per cell, and how much it counts.
    pub fn add(&mut self, forecast: impl Iterator<Item = f64>, (target, valid): (&[f32], &[u8]), weight: f64) {
        for (cell, ((forecast, target), valid)) in forecast.zip(target).zip(valid).enumerate() {
            if *valid != 0 {
                let error = forecast - f64::from(*target);
                self.absolute[cell] += weight * error.abs();
                self.squared[cell] += weight * (error * error);
                self.n[cell] += weight;
            }
        }
    }

    /// Mean absolute error of every cell; NaN where no target was valid.
    pub fn mae(&self) -> Vec<f64> {
        self.absolute.iter().zip(&self.n).map(|(sum, n)| sum / n).collect()
    }

    /// Errors over all cells; `None` when no target was valid.
    pub fn total(&self) -> Option<Baseline> {
        self.weighted(&vec![1.0; self.n.len()])
    }

    /// [`Self::total`] with a weight for every cell; `None` when nothing counts.
    pub fn weighted(&self, cells: &[f64]) -> Option<Baseline> {
        let sum = |sums: &[f64]| sums.iter().zip(cells).map(|(sum, weight)| sum * weight).sum::<f64>();
        let n = sum(&self.n);
        let mean = |sums: &[f64]| sum(sums) / n;
        (n > 0.0).then(|| Baseline { mae: mean(&self.absolute), rmse: mean(&self.squared).sqrt() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_cells_count_by_their_weights() {
        let mut errors = CellErrors::new(2);
        errors.add([1.0, 5.0].into_iter(), (&[0.0, 2.0], &[1, 1]), 1.0);
        errors.add([2.0, 9.0].into_iter(), (&[0.0, f32::NAN], &[1, 0]), 3.0);
        assert_eq!(errors.mae(), [7.0 / 4.0, 3.0]);
        assert_eq!(errors.total().unwrap(), Baseline { mae: 10.0 / 5.0, rmse: (22.0f64 / 5.0).sqrt() });
        assert_eq!(errors.weighted(&[0.0, 2.0]).unwrap(), Baseline { mae: 3.0, rmse: 3.0 });
        assert_eq!(errors.weighted(&[0.0, 0.0]), None);
    }
}
