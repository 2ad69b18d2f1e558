//! How honest predicted quantiles are: the share of targets below each level, and inside each pair of levels.

use enn_common::{
    artifact::evaluation::{Interval, Level},
    staged::Staged,
};

/// Predicted quantiles (rows, levels, O).
#[derive(Debug, Clone, Copy)]
pub struct Quantiles<'a> {
    /// Levels, rising.
    pub levels: &'a [f64],
    pub values: &'a [f32],
    /// Staged rows that count, and where among the values each is.
    pub rows: &'a [(usize, usize)],
    /// How much every output cell counts; `None`: all the same.
    pub weights: Option<&'a [f64]>,
}

impl Quantiles<'_> {
    /// Quantiles of one cell at a place, by level.
    fn of(&self, place: usize, cell: usize, outputs: usize) -> impl Iterator<Item = f64> + '_ {
        let first = place * self.levels.len() * outputs + cell;
        (0..self.levels.len()).map(move |level| f64::from(self.values[first + level * outputs]))
    }

    /// Hands every valid target that something was said of to `take`, with what was said and how much it counts.
    fn each(&self, staged: &Staged, mut take: impl FnMut(f64, &[f64], f64)) {
        let outputs = staged.outputs();
        let mut told = vec![0.0; self.levels.len()];
        for (row, place) in self.rows.iter().copied() {
            let of_row = staged.weight().get(row).copied().map_or(1.0, f64::from);
            let targets = staged.y_row(row).iter().zip(staged.y_mask_row(row)).enumerate();
            for (cell, (target, _)) in targets.filter(|(_, (_, valid))| **valid != 0) {
                told.iter_mut().zip(self.of(place, cell, outputs)).for_each(|(to, from)| *to = from);
                let weight = of_row * self.weights.map_or(1.0, |weights| weights[cell]);
                if weight > 0.0 && told.iter().all(|quantile| quantile.is_finite()) {
                    take(f64::from(*target), &told, weight);
                }
            }
        }
    }
}

/// How many targets predicted quantiles held, summed over rows.
#[derive(Debug, Clone, PartialEq)]
pub struct Held {
    levels: Vec<f64>,
    /// Weight of the targets at or below each level's quantile.
    below: Vec<f64>,
    /// Levels that are as far from 0 as their partner is from 1, widest first, with the weight and the widths of the targets between them.
    pairs: Vec<(usize, usize, f64, f64)>,
    weight: f64,
}

impl Held {
    /// Nothing yet, of these levels.
    pub fn new(levels: &[f64]) -> Self {
        let pairs = (0..levels.len() / 2).map(|low| (low, levels.len() - 1 - low));
        let pairs = pairs.filter(|(low, high)| (levels[*low] + levels[*high] - 1.0).abs() < 1e-9);
        let pairs = pairs.map(|(low, high)| (low, high, 0.0, 0.0)).collect();
        Self { levels: levels.to_vec(), below: vec![0.0; levels.len()], pairs, weight: 0.0 }
    }

    /// Takes rows in, whose quantiles have the same levels.
    #[must_use]
    pub fn with(mut self, staged: &Staged, quantiles: Quantiles<'_>) -> Self {
        quantiles.each(staged, |target, told, weight| {
            self.weight += weight;
            let at_or_below = |quantile: &f64| if target <= *quantile { weight } else { 0.0 };
            self.below.iter_mut().zip(told).for_each(|(sum, quantile)| *sum += at_or_below(quantile));
            for (low, high, inside, width) in &mut self.pairs {
                let held = told[*low] <= target && target <= told[*high];
                *inside += if held { weight } else { 0.0 };
                *width += weight * (told[*high] - told[*low]);
            }
        });
        self
    }

    /// Takes in what another sum of the same levels has.
    pub fn merge(&mut self, other: &Self) {
        self.weight += other.weight;
        self.below.iter_mut().zip(&other.below).for_each(|(sum, more)| *sum += more);
        for (own, more) in self.pairs.iter_mut().zip(&other.pairs) {
            (own.2, own.3) = (own.2 + more.2, own.3 + more.3);
        }
    }

    /// For every level the share of targets at or below its quantile; empty when no target is valid.
    pub fn levels(&self) -> Vec<Level> {
        let share = |(level, below): (&f64, &f64)| Level { level: *level, below: below / self.weight };
        let all = self.levels.iter().zip(&self.below).map(share);
        if self.weight == 0.0 { Vec::new() } else { all.collect() }
    }

    /// What the intervals between two levels held, widest first; empty when no target is valid.
    pub fn intervals(&self) -> Vec<Interval> {
        let of = |(low, high, inside, width): &(usize, usize, f64, f64)| Interval {
            lower: self.levels[*low],
            upper: self.levels[*high],
            covered: inside / self.weight,
            width: width / self.weight,
        };
        if self.weight == 0.0 { Vec::new() } else { self.pairs.iter().map(of).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baselines::tests::{Table, meta_of};

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
        let held = |quantiles| Held::new(&[0.1, 0.5, 0.9]).with(&staged, quantiles);
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
        assert!(Held::new(&[0.1, 0.9]).levels().is_empty() && Held::new(&[0.1, 0.9]).intervals().is_empty());
    }
}
