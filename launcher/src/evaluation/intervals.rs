//! How honest predicted quantiles are: the share of targets below each level, and inside each pair of levels.

use enn_common::{
    artifact::evaluation::{Interval, Level},
    staged::Staged,
};

/// Predicted quantiles (rows, levels, O) of the staged rows, in their order.
#[derive(Debug, Clone, Copy)]
pub struct Quantiles<'a> {
    /// Levels, rising.
    pub levels: &'a [f64],
    /// Values.
    pub values: &'a [f32],
    /// Rows that count.
    pub rows: &'a [usize],
    /// How much every output cell counts; `None`: all the same.
    pub weights: Option<&'a [f64]>,
}

impl Quantiles<'_> {
    /// Quantiles of one cell of a row, by level.
    fn of(&self, row: usize, cell: usize, outputs: usize) -> impl Iterator<Item = f64> + '_ {
        let first = row * self.levels.len() * outputs + cell;
        (0..self.levels.len()).map(move |level| f64::from(self.values[first + level * outputs]))
    }

    /// Hands every valid target that something was said of to `take`, with what was said and how much it counts.
    fn each(&self, staged: &Staged, mut take: impl FnMut(f64, &[f64], f64)) {
        let outputs = staged.outputs();
        let mut told = vec![0.0; self.levels.len()];
        for row in self.rows.iter().copied() {
            let of_row = staged.weight().get(row).copied().map_or(1.0, f64::from);
            let targets = staged.y_row(row).iter().zip(staged.y_mask_row(row)).enumerate();
            for (cell, (target, _)) in targets.filter(|(_, (_, valid))| **valid != 0) {
                told.iter_mut().zip(self.of(row, cell, outputs)).for_each(|(to, from)| *to = from);
                let weight = of_row * self.weights.map_or(1.0, |weights| weights[cell]);
                if weight > 0.0 && told.iter().all(|quantile| quantile.is_finite()) {
                    take(f64::from(*target), &told, weight);
                }
            }
        }
    }
}

/// For every level the share of targets at or below its quantile; empty when no target is valid.
pub fn levels(staged: &Staged, quantiles: Quantiles<'_>) -> Vec<Level> {
    let mut below = vec![0.0; quantiles.levels.len()];
    let mut n = 0.0;
    quantiles.each(staged, |target, told, weight| {
        n += weight;
        let at_or_below = |quantile: &f64| if target <= *quantile { weight } else { 0.0 };
        below.iter_mut().zip(told).for_each(|(sum, quantile)| *sum += at_or_below(quantile));
    });
    let share = |(level, below): (&f64, f64)| Level { level: *level, below: below / n };
    if n == 0.0 { Vec::new() } else { quantiles.levels.iter().zip(below).map(share).collect() }
}

/// The intervals between levels that are as far from 0 as their partner is from 1, widest first.
pub fn intervals(staged: &Staged, quantiles: Quantiles<'_>) -> Vec<Interval> {
    let levels = quantiles.levels;
    let pairs = (0..levels.len() / 2).map(|low| (low, levels.len() - 1 - low));
    let pairs: Vec<(usize, usize)> =
        pairs.filter(|(low, high)| (levels[*low] + levels[*high] - 1.0).abs() < 1e-9).collect();
    let mut sums = vec![(0.0, 0.0); pairs.len()];
    let mut n = 0.0;
    quantiles.each(staged, |target, told, weight| {
        n += weight;
        for ((inside, width), (low, high)) in sums.iter_mut().zip(&pairs) {
            let held = told[*low] <= target && target <= told[*high];
            *inside += if held { weight } else { 0.0 };
            *width += weight * (told[*high] - told[*low]);
        }
    });
    let of = |((low, high), (inside, width)): (&(usize, usize), (f64, f64))| Interval {
        lower: levels[*low],
        upper: levels[*high],
        covered: inside / n,
        width: width / n,
    };
    if n == 0.0 { Vec::new() } else { pairs.iter().zip(sums).map(of).collect() }
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
        let quantiles = Quantiles { levels: &[0.1, 0.5, 0.9], values: &values, rows: &[0, 1], weights: None };
        let below: Vec<f64> = levels(&staged, quantiles).iter().map(|level| level.below).collect();
        assert_eq!(below, [0.0, 1.0 / 3.0, 2.0 / 3.0]);
        let found = intervals(&staged, quantiles);
        assert_eq!((found.len(), found[0].lower, found[0].upper), (1, 0.1, 0.9));
        assert_eq!((found[0].covered, found[0].width), (2.0 / 3.0, 4.0));
        // Targets 1 and 3 of the first cell are inside, the second cell's 5 is not.
        let weights = [1.0, 3.0];
        let weighted = intervals(&staged, Quantiles { weights: Some(&weights), ..quantiles });
        assert_eq!(weighted[0].covered, 2.0 / 5.0);
    }
}
