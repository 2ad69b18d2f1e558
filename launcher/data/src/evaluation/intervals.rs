//! Calibration of predicted quantiles: the share of targets below each level, and inside each pair of levels.

use enn_common::{
    artifact::evaluation::{QuantileCoverage, QuantileInterval},
    staged::Staged,
};

/// Predicted quantiles (rows, levels, O).
#[derive(Debug, Clone, Copy)]
pub struct Quantiles<'a> {
    /// Levels in ascending order, each in (0, 1).
    pub levels: &'a [f64],
    pub values: &'a [f32],
    /// The staged rows that are scored, each with its index along the first axis of `values`.
    pub rows: &'a [(usize, usize)],
    /// Weight of every output cell; `None` weighs all cells equally.
    pub weights: Option<&'a [f64]>,
}

impl Quantiles<'_> {
    /// Returns the quantiles of one cell by level, at index `place` of `values`.
    fn of(&self, place: usize, cell: usize, outputs: usize) -> impl Iterator<Item = f64> + '_ {
        let first = place * self.levels.len() * outputs + cell;
        (0..self.levels.len()).map(move |level| f64::from(self.values[first + level * outputs]))
    }

    /// Calls `take` with every valid target that has finite quantiles, these quantiles, and the target's weight.
    fn each(&self, staged: &Staged, mut take: impl FnMut(f64, &[f64], f64)) {
        let outputs = staged.outputs();
        let mut quantiles = vec![0.0; self.levels.len()];
        for (row, place) in self.rows.iter().copied() {
            let of_row = staged.weight().get(row).copied().map_or(1.0, f64::from);
            let targets = staged.y_row(row).iter().zip(staged.y_mask_row(row)).enumerate();
            for (cell, (target, _)) in targets.filter(|(_, (_, valid))| **valid != 0) {
                quantiles.iter_mut().zip(self.of(place, cell, outputs)).for_each(|(to, from)| *to = from);
                let weight = of_row * self.weights.map_or(1.0, |weights| weights[cell]);
                if weight > 0.0 && quantiles.iter().all(|quantile| quantile.is_finite()) {
                    take(f64::from(*target), &quantiles, weight);
                }
            }
        }
    }
}

/// Empirical coverage of predicted quantiles and of the intervals between them, summed over rows.
#[derive(Debug, Clone, PartialEq)]
pub struct IntervalCoverage {
    levels: Vec<f64>,
    /// Weight of the targets at or below each level's quantile.
    below: Vec<f64>,
    /// Central intervals: pairs of levels p and 1 − p, widest first.
    pairs: Vec<LevelPair>,
    weight: f64,
}

#[derive(Debug, Clone, PartialEq)]
struct LevelPair {
    low: usize,
    high: usize,
    inside: f64,
    width: f64,
}

impl IntervalCoverage {
    pub fn new(levels: &[f64]) -> Self {
        let pairs = (0..levels.len() / 2).map(|low| (low, levels.len() - 1 - low));
        let pairs = pairs.filter(|(low, high)| (levels[*low] + levels[*high] - 1.0).abs() < 1e-9);
        let pairs = pairs.map(|(low, high)| LevelPair { low, high, inside: 0.0, width: 0.0 }).collect();
        Self { levels: levels.to_vec(), below: vec![0.0; levels.len()], pairs, weight: 0.0 }
    }

    /// Adds rows whose quantiles have the same levels.
    #[must_use]
    pub fn with(mut self, staged: &Staged, quantiles: Quantiles<'_>) -> Self {
        quantiles.each(staged, |target, quantiles, weight| {
            self.weight += weight;
            let at_or_below = |quantile: &f64| if target <= *quantile { weight } else { 0.0 };
            self.below.iter_mut().zip(quantiles).for_each(|(sum, quantile)| *sum += at_or_below(quantile));
            for LevelPair { low, high, inside, width } in &mut self.pairs {
                let is_inside = quantiles[*low] <= target && target <= quantiles[*high];
                *inside += if is_inside { weight } else { 0.0 };
                *width += weight * (quantiles[*high] - quantiles[*low]);
            }
        });
        self
    }

    pub fn merge(&mut self, other: &Self) {
        self.weight += other.weight;
        self.below.iter_mut().zip(&other.below).for_each(|(sum, more)| *sum += more);
        for (own, more) in self.pairs.iter_mut().zip(&other.pairs) {
            own.inside += more.inside;
            own.width += more.width;
        }
    }

    /// Returns for every level the share of targets at or below its quantile; empty when no target is valid.
    pub fn levels(&self) -> Vec<QuantileCoverage> {
        let share = |(level, below): (&f64, &f64)| QuantileCoverage { level: *level, below: below / self.weight };
        let all = self.levels.iter().zip(&self.below).map(share);
        if self.weight == 0.0 { Vec::new() } else { all.collect() }
    }

    /// Returns coverage and mean width of the central intervals, widest first; empty when no target is valid.
    pub fn intervals(&self) -> Vec<QuantileInterval> {
        let of = |pair: &LevelPair| QuantileInterval {
            lower: self.levels[pair.low],
            upper: self.levels[pair.high],
            covered: pair.inside / self.weight,
            width: pair.width / self.weight,
        };
        if self.weight == 0.0 { Vec::new() } else { self.pairs.iter().map(of).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baselines::fixture::{Table, meta_of};

    #[test]
    fn shares_below_and_inside_are_counted_over_valid_targets() {
        let dir = tempfile::tempdir().unwrap();
        let labels = vec![vec!["a".to_owned(), "b".to_owned()]];
        let features = vec![enn_common::staged::meta::FeatureMeta { name: "x".into(), ..Default::default() }];
        let table = Table {
            rows: 2,
            features,
            out_shape: meta_of(labels.clone()).out_shape,
            out_labels: labels,
            x: vec![0.0; 2],
            y: vec![1.0, 5.0, 3.0, f32::NAN],
            split: vec![2; 2],
            persistence: None,
        };
        let staged = Staged::open(&table.write(dir.path())).unwrap();
        // Rows × levels × cells; every cell's quantiles are 0, 2, 4, and those of the missing one do not count.
        let values = [0.0, 0.0, 2.0, 2.0, 4.0, 4.0].repeat(2);
        let quantiles = Quantiles { levels: &[0.1, 0.5, 0.9], values: &values, rows: &[(0, 0), (1, 1)], weights: None };
        let held = |quantiles| IntervalCoverage::new(&[0.1, 0.5, 0.9]).with(&staged, quantiles);
        let whole = held(quantiles);
        let below: Vec<f64> = whole.levels().iter().map(|level| level.below).collect();
        assert_eq!(below, [0.0, 1.0 / 3.0, 2.0 / 3.0]);
        let found = whole.intervals();
        assert_eq!((found.len(), found[0].lower, found[0].upper), (1, 0.1, 0.9));
        assert_eq!((found[0].covered, found[0].width), (2.0 / 3.0, 4.0));
        // Targets 1 and 3 of the first cell are inside, the second cell's 5 is not.
        let weights = [1.0, 3.0];
        let weighted = held(Quantiles { weights: Some(&weights), ..quantiles }).intervals();
        assert_eq!(weighted[0].covered, 2.0 / 5.0);
        // Rows one by one are all rows.
        let mut merged = held(Quantiles { rows: &[(0, 0)], ..quantiles });
        merged.merge(&held(Quantiles { rows: &[(1, 1)], ..quantiles }));
        assert_eq!(merged, whole);
        assert!(
            IntervalCoverage::new(&[0.1, 0.9]).levels().is_empty()
                && IntervalCoverage::new(&[0.1, 0.9]).intervals().is_empty()
        );
    }
}
