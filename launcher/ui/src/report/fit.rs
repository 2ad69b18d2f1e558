//! The model's forecasts of the test rows against what happened: errors per row and cell, ranges, density.
//!
//! **Invariant:** valid cells only; passes over the mapped arrays, nothing of their size is kept but one number per row.

use super::predictions::TestPredictions;
use enn_common::staged::Staged;
use enn_data::baselines::Scores;

/// Bins along each axis of the density, and of the histogram of errors.
pub(super) const BINS: usize = 44;

#[derive(Debug)]
pub(super) struct Fit {
    /// Mean absolute error of each forecast, with its number; those without a valid cell are left out. Ascending by error.
    pub(super) rows: Vec<(usize, f64)>,
    pub(super) cells: Scores,
    /// Range of targets and forecasts together.
    pub(super) range: (f64, f64),
    /// Cells per (actual bin, forecast bin).
    pub(super) density: Vec<u64>,
    /// Largest absolute error that has a bin of its own in the histogram.
    pub(super) reach: f64,
    /// Cells per error bin from −reach to reach; errors beyond it are in the outer bins.
    pub(super) histogram: Vec<u64>,
    pub(super) bias: f64,
    /// Number of valid cells.
    pub(super) n: u64,
}

impl Fit {
    /// Computes the statistics; `None` when no cell is valid.
    pub(super) fn new(staged: &Staged, predictions: &TestPredictions) -> Option<Self> {
        let mut rows = Vec::new();
        let mut cells = Scores::new(staged.meta());
        let mut low = f64::INFINITY;
        let mut high = f64::NEG_INFINITY;
        let mut sum = 0.0;
        let mut n = 0u64;
        for index in 0..predictions.rows().len() {
            let mut absolute = 0.0;
            let mut count = 0u64;
            each(staged, predictions, index, |actual, forecast| {
                low = low.min(actual).min(forecast);
                high = high.max(actual).max(forecast);
                sum += forecast - actual;
                absolute += (forecast - actual).abs();
                count += 1;
            });
            let row = predictions.rows()[index];
            let weight = staged.weight().get(row).copied().map_or(1.0, f64::from);
            let forecast = predictions.forecast(index).iter().map(|value| f64::from(*value));
            cells.add(forecast, staged.y_row(row), staged.y_mask_row(row), weight);
            if count > 0 {
                rows.push((index, absolute / count as f64));
            }
            n += count;
        }
        if n == 0 || !(low.is_finite() && high.is_finite()) {
            return None;
        }
        rows.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
        let bias = sum / n as f64;
        let mut fit = Self {
            rows,
            cells,
            range: (low, high),
            density: vec![0; BINS * BINS],
            reach: 0.0,
            histogram: vec![0; BINS],
            bias,
            n,
        };
        fit.reach = fit.reach_of(staged, predictions);
        fit.count(staged, predictions);
        Some(fit)
    }

    /// Four times the mean absolute error or less: a bound that holds nearly all errors of any common distribution.
    fn reach_of(&self, staged: &Staged, predictions: &TestPredictions) -> f64 {
        let mae = self.cells.total().map_or(0.0, |total| total.mae);
        let mut largest: f64 = 0.0;
        each_of_all(staged, predictions, |actual, forecast| largest = largest.max((forecast - actual).abs()));
        largest.min(4.0 * mae).max(f64::MIN_POSITIVE)
    }

    fn count(&mut self, staged: &Staged, predictions: &TestPredictions) {
        let (low, high) = self.range;
        let width = ((high - low) / BINS as f64).max(f64::MIN_POSITIVE);
        let bin = |share: f64| (share.max(0.0) as usize).min(BINS - 1);
        each_of_all(staged, predictions, |actual, forecast| {
            self.density[bin((actual - low) / width) * BINS + bin((forecast - low) / width)] += 1;
            let share = ((forecast - actual) / self.reach + 1.0) / 2.0;
            self.histogram[bin(share * BINS as f64)] += 1;
        });
    }

    /// The forecast at a quantile of the rows' errors: its number and error.
    pub(super) fn quantile(&self, share: f64) -> (usize, f64) {
        let place = (share * (self.rows.len() - 1) as f64).round() as usize;
        self.rows[place.min(self.rows.len() - 1)]
    }
}

fn each_of_all(staged: &Staged, predictions: &TestPredictions, mut take: impl FnMut(f64, f64)) {
    (0..predictions.rows().len()).for_each(|index| each(staged, predictions, index, &mut take));
}

/// Hands every valid cell of forecast `index` to `take`: actual, forecast.
fn each(staged: &Staged, predictions: &TestPredictions, index: usize, mut take: impl FnMut(f64, f64)) {
    let row = predictions.rows()[index];
    let cells = staged.y_row(row).iter().zip(staged.y_mask_row(row)).zip(predictions.forecast(index));
    for ((actual, valid), forecast) in cells {
        if *valid != 0 && forecast.is_finite() {
            take(f64::from(*actual), f64::from(*forecast));
        }
    }
}
