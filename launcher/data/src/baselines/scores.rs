//! Errors and spreads per output cell, summed over rows; where the cells are classes, log-loss and accuracy by true class.
//!
//! **Invariant:** a cell counts only where its target is valid and its forecast finite; sums are f64.

use enn_common::{metrics::Metrics, staged::StagedMeta};

/// Lower bound of a predicted probability in the log-loss: the epsilon of f32.
pub(super) const PROBABILITY_MIN: f64 = f32::EPSILON as f64;

/// Weighted sums of absolute and squared errors of every cell, and the spread of its targets and forecasts.
#[derive(Debug, Clone, PartialEq)]
pub struct Scores {
    absolute: Vec<f64>,
    squared: Vec<f64>,
    targets: Vec<Spread>,
    forecasts: Vec<Spread>,
    /// Number of valid cells in rows with weight.
    n: Vec<u64>,
    /// Factors for the errors of cells without a common unit.
    scales: Option<Vec<f64>>,
    classes: Option<Vec<ClassScores>>,
}

/// Sums over the rows whose true class is one class.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct ClassScores {
    weight: f64,
    /// Sum of −ln p of the true class.
    loss: f64,
    /// Weight of the rows in which it is also the likeliest class.
    right: f64,
}

impl Scores {
    pub fn new(meta: &StagedMeta) -> Self {
        let cells = meta.out_shape.iter().product();
        let classes = meta.has_classes.then(|| vec![ClassScores::default(); cells]);
        Self { scales: meta.scales(), classes, ..Self::of_cells(cells) }
    }

    fn of_cells(cells: usize) -> Self {
        let none = vec![Spread::default(); cells];
        let absolute = vec![0.0; cells];
        let squared = vec![0.0; cells];
        Self {
            absolute,
            squared,
            targets: none.clone(),
            forecasts: none,
            n: vec![0; cells],
            scales: None,
            classes: None,
        }
    }

    /// Adds one row: its forecast (NaN where there is none), targets and their validity, one value per cell each, and its weight.
    pub fn add(&mut self, forecast: impl Iterator<Item = f64>, target: &[f32], valid: &[u8], weight: f64) {
        if weight <= 0.0 {
            return;
        }
        let mut likeliest = (0, f64::NEG_INFINITY);
        let mut is = None;
        let mut probability = f64::NAN;
        for (cell, ((forecast, target), valid)) in forecast.zip(target).zip(valid).enumerate() {
            if *valid != 0 && forecast.is_finite() {
                if forecast > likeliest.1 {
                    likeliest = (cell, forecast);
                }
                if *target == 1.0 {
                    is = Some(cell);
                    probability = forecast;
                }
                let error = forecast - f64::from(*target);
                self.absolute[cell] += weight * error.abs();
                self.squared[cell] += weight * (error * error);
                self.targets[cell].push(f64::from(*target), weight);
                self.forecasts[cell].push(forecast, weight);
                self.n[cell] += 1;
            }
        }
        if let Some((classes, is)) = self.classes.as_mut().zip(is) {
            let class = &mut classes[is];
            class.weight += weight;
            class.loss -= weight * probability.max(PROBABILITY_MIN).ln();
            class.right += if likeliest.0 == is { weight } else { 0.0 };
        }
    }

    pub fn merge(&mut self, other: &Self) {
        self.absolute.iter_mut().zip(&other.absolute).for_each(|(sum, more)| *sum += more);
        self.squared.iter_mut().zip(&other.squared).for_each(|(sum, more)| *sum += more);
        self.targets.iter_mut().zip(&other.targets).for_each(|(sum, more)| sum.merge(more, 1.0));
        self.forecasts.iter_mut().zip(&other.forecasts).for_each(|(sum, more)| sum.merge(more, 1.0));
        self.n.iter_mut().zip(&other.n).for_each(|(sum, more)| *sum += more);
        for (sum, more) in self.classes.iter_mut().flatten().zip(other.classes.iter().flatten()) {
            sum.add(more, 1.0);
        }
    }

    /// Returns the mean absolute error of every cell; NaN where no target was valid.
    pub fn mae(&self) -> Vec<f64> {
        self.absolute.iter().zip(&self.targets).map(|(sum, targets)| sum / targets.weight).collect()
    }

    /// Returns errors over all cells with equal weights; `None` when no target was valid.
    pub fn total(&self) -> Option<Metrics> {
        self.over(|_| 1.0)
    }

    /// Returns errors over the cells, weighted by `weight` of each; `None` when no target has weight. R² is relative to the mean of all
    /// targets of these cells. Log-loss and accuracy cover the rows whose true class has weight.
    pub fn over(&self, weight: impl Fn(usize) -> f64) -> Option<Metrics> {
        let mut absolute = 0.0;
        let mut squared = 0.0;
        let mut targets = Spread::default();
        let mut n = 0;
        let mut scaled = 0.0;
        let mut class = ClassScores::default();
        for (cell, weight) in (0..self.n.len()).map(|cell| (cell, weight(cell))).filter(|(_, weight)| *weight > 0.0) {
            absolute += weight * self.absolute[cell];
            squared += weight * self.squared[cell];
            targets.merge(&self.targets[cell], weight);
            n += self.n[cell];
            scaled += self.scales.as_ref().map_or(0.0, |scales| weight * self.absolute[cell] * scales[cell]);
            if let Some(classes) = &self.classes {
                class.add(&classes[cell], weight);
            }
        }
        let sum = targets.weight;
        (n > 0).then(|| Metrics {
            mae: absolute / sum,
            rmse: (squared / sum).sqrt(),
            r2: 1.0 - squared / targets.squares,
            n,
            scaled: self.scales.as_ref().map(|_| scaled / sum),
            loss: self.classes.as_ref().map_or(f64::NAN, |_| class.loss / class.weight),
            interval: None,
            accuracy: self.classes.as_ref().map(|_| class.right / class.weight),
        })
    }

    /// Returns the spread of the forecasts divided by the spread of the targets, median over the cells whose targets vary: 0 means that
    /// the forecast does not depend on the row. `None` when no cell varies.
    pub fn reactivity(&self) -> Option<f64> {
        let spreads = self.forecasts.iter().zip(&self.targets).filter(|(_, target)| target.squares > 0.0);
        let mut ratios: Vec<f64> =
            spreads.map(|(forecast, target)| (forecast.squares / target.squares).sqrt()).collect();
        ratios.sort_by(f64::total_cmp);
        let middle = ratios.len() / 2;
        match ratios.len() {
            0 => None,
            n if n % 2 == 1 => Some(ratios[middle]),
            _ => Some(f64::midpoint(ratios[middle - 1], ratios[middle])),
        }
    }
}

impl ClassScores {
    fn add(&mut self, other: &Self, by: f64) {
        self.weight += by * other.weight;
        self.loss += by * other.loss;
        self.right += by * other.right;
    }
}

/// Weighted mean and sum of squared deviations. A constant has deviation 0 exactly.
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

    fn merge(&mut self, other: &Self, by: f64) {
        let weight = by * other.weight;
        if weight <= 0.0 {
            return;
        }
        let sum = self.weight + weight;
        let delta = other.mean - self.mean;
        self.squares += by * other.squares + delta * delta * (self.weight * (weight / sum));
        self.mean += delta * (weight / sum);
        self.weight = sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_worth_what_they_give_the_true_class() {
        let mut scores = Scores { classes: Some(vec![ClassScores::default(); 3]), ..Scores::of_cells(3) };
        let mut add = |told: [f64; 3], is: [f32; 3], valid| scores.add(told.into_iter(), &is, &[valid; 3], 1.0);
        add([0.5, 0.3, 0.2], [1.0, 0.0, 0.0], 1);
        add([0.5, 0.25, 0.25], [0.0, 1.0, 0.0], 1);
        add([0.0, 0.0, 1.0], [f32::NAN; 3], 0);
        add([f64::NAN; 3], [0.0, 0.0, 1.0], 1);
        add([1.0, 0.0, 0.0], [0.0, 0.0, 1.0], 1);
        let all = scores.total().unwrap();
        let expected = (2f64.ln() + 4f64.ln() - f64::from(f32::EPSILON).ln()) / 3.0;
        assert!((all.loss - expected).abs() < 1e-12 && all.judged() == all.loss, "{all:?}");
        assert_eq!((all.accuracy, all.n), (Some(1.0 / 3.0), 9));
        // Of the rows whose class is the second.
        let second = scores.over(|cell| f64::from(cell == 1)).unwrap();
        assert_eq!((second.loss, second.accuracy), (4f64.ln(), Some(0.0)));
    }

    #[test]
    fn cells_without_a_common_unit_are_judged_in_their_own() {
        let mut scores = Scores { scales: Some(vec![1e-6, 1.0]), ..Scores::of_cells(2) };
        scores.add([1e6, 3.0].into_iter(), &[0.0, 0.0], &[1, 1], 1.0);
        let all = scores.total().unwrap();
        assert_eq!((all.scaled, all.judged(), all.mae), (Some(2.0), 2.0, 500_001.5));
    }

    #[test]
    fn figures_agree_with_their_definitions() {
        let mut scores = Scores::of_cells(2);
        scores.add([1.0, 9.0].into_iter(), &[2.0, 0.0], &[1, 0], 1.0);
        let mut more = Scores::of_cells(2);
        more.add([2.0, 3.0].into_iter(), &[4.0, 3.0], &[1, 1], 1.0);
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
        assert_eq!((Scores::of_cells(1).total(), Scores::of_cells(1).reactivity()), (None, None));
    }

    #[test]
    fn rows_and_cells_count_by_their_weights() {
        let mut scores = Scores::of_cells(2);
        scores.add([1.0, 5.0].into_iter(), &[0.0, 2.0], &[1, 1], 1.0);
        scores.add([2.0, 9.0].into_iter(), &[0.0, f32::NAN], &[1, 0], 3.0);
        scores.add([7.0, 7.0].into_iter(), &[0.0, 0.0], &[1, 1], 0.0);
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
        let mut by_weight = Scores::of_cells(2);
        let mut twice = Scores::of_cells(2);
        for (forecast, target) in rows {
            let target = target.map(|value| value as f32);
            by_weight.add(forecast.into_iter(), &target, &[1, 1], 2.0);
            twice.add(forecast.into_iter(), &target, &[1, 1], 1.0);
            twice.add(forecast.into_iter(), &target, &[1, 1], 1.0);
        }
        let one = by_weight.total().unwrap();
        let two = twice.total().unwrap();
        assert!((one.r2 - two.r2).abs() < 1e-12 && one.mae == two.mae && (one.rmse - two.rmse).abs() < 1e-12);
        assert_eq!((one.n, two.n), (5, 10));
        assert!((by_weight.reactivity().unwrap() - twice.reactivity().unwrap()).abs() < 1e-12);
    }

    #[test]
    fn a_constant_has_no_spread() {
        let mut scores = Scores::of_cells(1);
        for weight in [0.1, 0.7, 0.3] {
            scores.add([0.1].into_iter(), &[0.1], &[1], weight);
        }
        assert_eq!((scores.reactivity(), scores.targets[0].squares), (None, 0.0));
    }
}
