//! Errors and spreads per output cell, summed over rows.
//!
//! **Invariant:** a cell counts only where its target is valid and something was forecast; sums are f64.

use enn_common::metrics::Metrics;

/// Absolute and squared errors of every cell, and how far its targets and its forecasts spread, each row by its weight.
#[derive(Debug, Clone, PartialEq)]
pub struct Scores {
    absolute: Vec<f64>,
    squared: Vec<f64>,
    targets: Vec<Spread>,
    forecasts: Vec<Spread>,
    /// Valid cells of rows that count.
    n: Vec<u64>,
}

impl Scores {
    /// No rows yet.
    pub fn new(cells: usize) -> Self {
        let none = vec![Spread::default(); cells];
        let (absolute, squared) = (vec![0.0; cells], vec![0.0; cells]);
        Self { absolute, squared, targets: none.clone(), forecasts: none, n: vec![0; cells] }
    }

    /// Takes one row in: its forecast, NaN where there is none, its targets and their validity, each of one value per cell, and how
    /// much it counts.
    pub fn add(&mut self, forecast: impl Iterator<Item = f64>, (target, valid): (&[f32], &[u8]), weight: f64) {
        if weight <= 0.0 {
            return;
        }
        for (cell, ((forecast, target), valid)) in forecast.zip(target).zip(valid).enumerate() {
            if *valid != 0 && forecast.is_finite() {
                let error = forecast - f64::from(*target);
                self.absolute[cell] += weight * error.abs();
                self.squared[cell] += weight * (error * error);
                self.targets[cell].push(f64::from(*target), weight);
                self.forecasts[cell].push(forecast, weight);
                self.n[cell] += 1;
            }
        }
    }

    /// Takes other rows' scores in.
    pub fn merge(&mut self, other: &Self) {
        self.absolute.iter_mut().zip(&other.absolute).for_each(|(sum, more)| *sum += more);
        self.squared.iter_mut().zip(&other.squared).for_each(|(sum, more)| *sum += more);
        self.targets.iter_mut().zip(&other.targets).for_each(|(sum, more)| sum.merge(more, 1.0));
        self.forecasts.iter_mut().zip(&other.forecasts).for_each(|(sum, more)| sum.merge(more, 1.0));
        self.n.iter_mut().zip(&other.n).for_each(|(sum, more)| *sum += more);
    }

    /// Mean absolute error of every cell; NaN where no target was valid.
    pub fn mae(&self) -> Vec<f64> {
        self.absolute.iter().zip(&self.targets).map(|(sum, targets)| sum / targets.weight).collect()
    }

    /// Errors over all cells, which count the same; `None` when no target was valid.
    pub fn total(&self) -> Option<Metrics> {
        self.over(|_| 1.0)
    }

    /// Errors over the cells, by the weight that `weight` gives each; `None` when nothing counts. R² is about the mean of all their
    /// targets.
    pub fn over(&self, weight: impl Fn(usize) -> f64) -> Option<Metrics> {
        let (mut absolute, mut squared, mut targets, mut n) = (0.0, 0.0, Spread::default(), 0);
        for (cell, weight) in (0..self.n.len()).map(|cell| (cell, weight(cell))).filter(|(_, weight)| *weight > 0.0) {
            absolute += weight * self.absolute[cell];
            squared += weight * self.squared[cell];
            targets.merge(&self.targets[cell], weight);
            n += self.n[cell];
        }
        let sum = targets.weight;
        (n > 0).then(|| Metrics {
            mae: absolute / sum,
            rmse: (squared / sum).sqrt(),
            r2: 1.0 - squared / targets.squares,
            n,
            loss: f64::NAN,
            interval: None,
            accuracy: None,
        })
    }

    /// Spread of the forecasts over spread of the targets, median over the cells whose targets vary: 0 is a forecast that does
    /// not depend on the row. `None` when no cell varies.
    pub fn reactivity(&self) -> Option<f64> {
        let spreads = self.forecasts.iter().zip(&self.targets).filter(|(_, held)| held.squares > 0.0);
        let mut ratios: Vec<f64> = spreads.map(|(told, held)| (told.squares / held.squares).sqrt()).collect();
        ratios.sort_by(f64::total_cmp);
        let middle = ratios.len() / 2;
        match ratios.len() {
            0 => None,
            n if n % 2 == 1 => Some(ratios[middle]),
            _ => Some(f64::midpoint(ratios[middle - 1], ratios[middle])),
        }
    }
}

/// Mean and squared deviations of values with weights. A constant has no deviation, to the last bit.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Spread {
    weight: f64,
    mean: f64,
    squares: f64,
}

impl Spread {
    fn push(&mut self, value: f64, weight: f64) {
        self.weight += weight;
        let delta = value - self.mean;
        self.mean += delta * (weight / self.weight);
        self.squares += weight * delta * (value - self.mean);
    }

    /// Takes values in whose weights count `by` times.
    fn merge(&mut self, other: &Self, by: f64) {
        let weight = by * other.weight;
        if weight <= 0.0 {
            return;
        }
        let (sum, delta) = (self.weight + weight, other.mean - self.mean);
        self.squares += by * other.squares + delta * delta * (self.weight * (weight / sum));
        self.mean += delta * (weight / sum);
        self.weight = sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_agree_with_their_definitions() {
        let mut scores = Scores::new(2);
        scores.add([1.0, 9.0].into_iter(), (&[2.0, 0.0], &[1, 0]), 1.0);
        let mut more = Scores::new(2);
        more.add([2.0, 3.0].into_iter(), (&[4.0, 3.0], &[1, 1]), 1.0);
        scores.merge(&more);
        // Cell 0: errors −1, −2 about targets 2, 4; cell 1: exact, once.
        let all = scores.total().unwrap();
        assert_eq!((all.mae, all.n), (1.0, 3));
        assert!((all.rmse - (5.0f64 / 3.0).sqrt()).abs() < 1e-12);
        // Targets 2, 4, 3: squares about their mean are 2.
        assert!((all.r2 - (1.0 - 5.0 / 2.0)).abs() < 1e-12, "{}", all.r2);
        assert_eq!(scores.over(|cell| f64::from(cell == 1)).unwrap().mae, 0.0);
        // Only cell 0 varies: 0.5 over 1.
        assert_eq!(scores.reactivity(), Some(0.5));
        assert_eq!((Scores::new(1).total(), Scores::new(1).reactivity()), (None, None));
    }

    #[test]
    fn rows_and_cells_count_by_their_weights() {
        let mut scores = Scores::new(2);
        scores.add([1.0, 5.0].into_iter(), (&[0.0, 2.0], &[1, 1]), 1.0);
        scores.add([2.0, 9.0].into_iter(), (&[0.0, f32::NAN], &[1, 0]), 3.0);
        scores.add([7.0, 7.0].into_iter(), (&[0.0, 0.0], &[1, 1]), 0.0);
        assert_eq!(scores.mae(), [7.0 / 4.0, 3.0]);
        let all = scores.total().unwrap();
        assert_eq!((all.mae, all.n), (10.0 / 5.0, 3));
        assert!((all.rmse - (22.0f64 / 5.0).sqrt()).abs() < 1e-12);
        let last = scores.over(|cell| [0.0, 2.0][cell]).unwrap();
        assert_eq!((last.mae, last.rmse, last.n), (3.0, 3.0, 1));
        assert_eq!(scores.over(|_| 0.0), None);
    }

    #[test]
    fn a_weight_of_two_is_the_row_twice_and_what_was_not_forecast_does_not_count() {
        let rows = [([1.5, 0.5], [1.0, 2.0]), ([2.5, f64::NAN], [4.0, 5.0]), ([0.0, 1.0], [1.0, 1.0])];
        let (mut by_weight, mut twice) = (Scores::new(2), Scores::new(2));
        for (forecast, target) in rows {
            let target = target.map(|value| value as f32);
            by_weight.add(forecast.into_iter(), (&target, &[1, 1]), 2.0);
            twice.add(forecast.into_iter(), (&target, &[1, 1]), 1.0);
            twice.add(forecast.into_iter(), (&target, &[1, 1]), 1.0);
        }
        let (one, two) = (by_weight.total().unwrap(), twice.total().unwrap());
        assert!((one.r2 - two.r2).abs() < 1e-12 && one.mae == two.mae && (one.rmse - two.rmse).abs() < 1e-12);
        assert_eq!((one.n, two.n), (5, 10));
        assert!((by_weight.reactivity().unwrap() - twice.reactivity().unwrap()).abs() < 1e-12);
    }

    #[test]
    fn a_constant_has_no_spread() {
        let mut scores = Scores::new(1);
        for weight in [0.1, 0.7, 0.3] {
            scores.add([0.1].into_iter(), (&[0.1], &[1]), weight);
        }
        assert_eq!((scores.reactivity(), scores.targets[0].squares), (None, 0.0));
    }
}
