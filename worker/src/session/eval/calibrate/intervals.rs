//! How far quantiles must lie apart to hold what their levels say: split conformal prediction.
//!
//! From the median outwards the distance to the next level is multiplied by the smallest factor with which that level holds its
//! share of the validation targets, counted as one more than they are. The score of a target is thus its distance in units of what
//! the model says the distance is: the conformity score of Lei, G'Sell, Rinaldo, Tibshirani and Wasserman (Distribution-free
//! predictive inference for regression, 2018, section 5.2) for one level at a time, as Romano, Patterson and Candès (Conformalized
//! quantile regression, 2019) have it. A cell has a factor of its own as far as the cells' factors in one half of the rows say
//! something about those in the other (Spearman and Brown's formula for two halves).
//!
//! **Invariant:** pure; no factor is negative, so that quantiles stay in order.

use super::sample::Sample;
use enn_common::config::train::MEDIAN;

const STRETCH: (f64, f64) = (0.1, 10.0);
/// With fewer rows, or fewer cells, all cells have the same factors.
const OWN_ROWS_MIN: usize = 20;
const OWN_CELLS_MIN: usize = 4;
/// A distance of nothing is taken for this, in target standard deviations.
const GAP_MIN: f64 = 1e-9;

/// Factors, and what they do on the validation rows.
#[derive(Debug)]
pub(crate) struct Intervals {
    /// By distance between two levels, and by cell.
    pub(crate) stretch: Vec<Vec<f64>>,
    /// Share of the targets within the outermost quantiles before, and after.
    held: [f64; 2],
    /// How much of its own a cell has, 0 to 1; the mean over the levels.
    own: f64,
}

/// Factors of the distances between `levels`, all multiplied by `drift`.
pub(crate) fn fit(sample: &Sample, levels: &[f64], drift: f64) -> Intervals {
    let middle = sample.middle;
    let mut quantiles = sample.quantiles.clone();
    let mut stretch = vec![vec![1.0; sample.cells]; levels.len() - 1];
    let before = held(sample, &quantiles);
    let mut own = 0.0;
    let upwards = (middle + 1..levels.len()).map(|to| (to - 1, to, 1.0));
    let downwards = (0..middle).rev().map(|to| (to + 1, to, -1.0));
    for (from, to, sign) in upwards.chain(downwards) {
        // Both sides look outwards: the level of a quantile below the median is that of its mirror.
        let level = MEDIAN + (levels[to] - MEDIAN).abs();
        let raw = |i: usize| sign * (sample.quantiles[to][i] - sample.quantiles[from][i]);
        let score = |i: usize| sign * (sample.target[i] - quantiles[from][i]) / raw(i).max(GAP_MIN);
        let (factors, weight) = factors(sample, level, &score);
        own += weight / (levels.len() - 1) as f64;
        let moved = (0..sample.target.len()).map(|i| quantiles[from][i] + sign * factors[i % sample.cells] * raw(i));
        quantiles[to] = moved.collect();
        stretch[from.min(to)] = factors;
    }
    let after = held(sample, &quantiles);
    stretch.iter_mut().flatten().for_each(|factor| *factor *= drift);
    Intervals { stretch, held: [before, after], own }
}

/// A factor for each cell, and how much of its own a cell has.
fn factors(sample: &Sample, level: f64, score: &dyn Fn(usize) -> f64) -> (Vec<f64>, f64) {
    let factor = |places: &mut dyn Iterator<Item = usize>| {
        let scores = places.filter(|&i| sample.weight[i] > 0.0).map(|i| (score(i), sample.weight[i])).collect();
        conformal(scores, level).map(|found| found.clamp(STRETCH.0, STRETCH.1))
    };
    let rows = sample.rows;
    let cells = sample.cells;
    let shared = factor(&mut (0..rows * cells)).unwrap_or(1.0);
    let logs = |rows: std::ops::Range<usize>| -> Option<Vec<f64>> {
        (0..cells).map(|cell| factor(&mut rows.clone().map(|row| row * cells + cell)).map(f64::ln)).collect()
    };
    let found = (rows >= OWN_ROWS_MIN && cells >= OWN_CELLS_MIN)
        .then(|| Some((logs(0..rows / 2)?, logs(rows / 2..rows)?, logs(0..rows)?)))
        .flatten();
    let Some((first, second, whole)) = found else { return (vec![shared; cells], 0.0) };
    let own = reliability(&first, &second);
    (whole.iter().map(|log| ((1.0 - own) * shared.ln() + own * log).exp()).collect(), own)
}

/// How far the values of two halves agree, as the reliability of the whole: 0 to 1.
fn reliability(first: &[f64], second: &[f64]) -> f64 {
    let n = first.len() as f64;
    let mean = |values: &[f64]| values.iter().sum::<f64>() / n;
    let a = mean(first);
    let b = mean(second);
    let moment = |x: &[f64], y: &[f64], (a, b)| x.iter().zip(y).map(|(x, y)| (x - a) * (y - b)).sum::<f64>();
    let spread = (moment(first, first, (a, a)) * moment(second, second, (b, b))).sqrt();
    let correlation = if spread > 0.0 { (moment(first, second, (a, b)) / spread).max(0.0) } else { 0.0 };
    2.0 * correlation / (1.0 + correlation)
}

/// The smallest score that a share `level` of the weights does not exceed, when one more of mean weight is counted that does; the
/// largest where there are too few for that.
fn conformal(mut scores: Vec<(f64, f64)>, level: f64) -> Option<f64> {
    scores.sort_by(|one, other| one.0.total_cmp(&other.0));
    let total: f64 = scores.iter().map(|(_, weight)| weight).sum();
    let needed = level * total * (1.0 + 1.0 / scores.len().max(1) as f64);
    let mut sum = 0.0;
    let reached = scores.iter().find(|(_, weight)| {
        sum += weight;
        sum >= needed
    });
    reached.or(scores.last()).map(|(score, _)| *score)
}

/// Share of the targets within the outermost of some quantiles.
fn held(sample: &Sample, quantiles: &[Vec<f64>]) -> f64 {
    let low = &quantiles[0];
    let high = &quantiles[quantiles.len() - 1];
    let within = |&i: &usize| low[i] <= sample.target[i] && sample.target[i] <= high[i];
    let total: f64 = sample.weight.iter().sum();
    (0..sample.target.len()).filter(within).map(|i| sample.weight[i]).sum::<f64>() / total
}

impl Intervals {
    /// The decision as a sentence for the user.
    pub(crate) fn decision(&self, nominal: f64, sample: &Sample, in_time: bool, drift: Option<f64>) -> String {
        let percent = |share: f64| format!("{:.1} %", 100.0 * share);
        let [before, after] = self.held.map(percent);
        let range = |factors: &[f64]| {
            let (low, high) = factors.iter().fold((f64::MAX, f64::MIN), |(l, h), f| (l.min(*f), h.max(*f)));
            if high - low < 5e-3 { format!("{low:.2}") } else { format!("{low:.2} to {high:.2}") }
        };
        let factors: Vec<String> = self.stretch.iter().map(|factors| range(factors)).collect();
        let drift = match drift {
            Some(drift) => format!("; among them {drift:.2} for stretches of time that the data do not hold"),
            None if in_time => "; nothing can be said of stretches of time that the data do not hold".to_owned(),
            None => String::new(),
        };
        format!(
            "intervals calibrated on {} validation rows: the {} interval held {before}, and {after} when fitted there; distances \
             from level to level times {}, {:.0} % by cell{drift}",
            sample.rows,
            percent(nominal),
            factors.join(", "),
            100.0 * self.own
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use enn_common::mix::mix;

    /// Numbers in (0, 1) that do not repeat.
    fn uniform(seed: u64) -> impl Iterator<Item = f64> {
        (1..).map(move |i| (mix(seed.wrapping_mul(0x9e37_79b9).wrapping_add(i)) >> 11) as f64 / (1u64 << 53) as f64)
    }

    /// Targets uniform about the location, ± `width` of the cell, and what a model says of them.
    fn sample(rows: usize, seed: u64, width: &[f64], said: &[f64]) -> Sample {
        let cells = width.len();
        let target: Vec<f64> =
            uniform(seed).take(rows * cells).enumerate().map(|(i, u)| width[i % cells] * (2.0 * u - 1.0)).collect();
        let quantiles = said.iter().map(|q| vec![*q; rows * cells]).collect();
        Sample { rows, cells, weight: vec![1.0; rows * cells], target, quantiles, middle: said.len() / 2 }
    }

    fn coverage(stretch: &[Vec<f64>], rows: usize, width: &[f64], said: &[f64]) -> f64 {
        let fresh = sample(rows, 99, width, said);
        let cells = width.len();
        let edge = |i: usize, range: std::ops::Range<usize>| {
            range.map(|gap| stretch[gap][i % cells] * (said[gap + 1] - said[gap])).sum::<f64>()
        };
        let middle = said.len() / 2;
        let within =
            |&i: &usize| fresh.target[i] >= -edge(i, 0..middle) && fresh.target[i] <= edge(i, middle..said.len() - 1);
        (0..rows * cells).filter(within).count() as f64 / (rows * cells) as f64
    }

    #[test]
    fn what_was_too_narrow_or_too_wide_holds_its_share() {
        for said in [vec![-0.1, 0.0, 0.3], vec![-3.0, -2.0, 0.0, 0.1, 2.0]] {
            let levels = if said.len() == 3 { vec![0.1, 0.5, 0.9] } else { vec![0.1, 0.25, 0.5, 0.75, 0.9] };
            let width = vec![1.0; 6];
            let found = fit(&sample(400, 1, &width, &said), &levels, 1.0);
            assert!((coverage(&found.stretch, 4000, &width, &said) - 0.8).abs() < 0.03, "{found:?}");
            assert!((found.held[1] - 0.8).abs() < 0.01 && found.own < 0.6, "{found:?}");
            let drifted = fit(&sample(400, 1, &width, &said), &levels, 2.0);
            assert!((drifted.stretch[0][0] / found.stretch[0][0] - 2.0).abs() < 1e-12);
        }
    }

    #[test]
    fn cells_that_differ_have_their_own_factors() {
        let width: Vec<f64> = (0..12).map(|cell| 1.0 + f64::from(cell % 4)).collect();
        let found = fit(&sample(300, 2, &width, &[-1.0, 0.0, 1.0]), &[0.1, 0.5, 0.9], 1.0);
        assert!(found.own > 0.9, "{found:?}");
        for (factor, width) in found.stretch[1].iter().zip(&width) {
            assert!((factor / (0.8 * width) - 1.0).abs() < 0.25, "{factor} for {width}");
        }
        // Few rows say nothing of a cell.
        let few = fit(&sample(10, 2, &width, &[-1.0, 0.0, 1.0]), &[0.1, 0.5, 0.9], 1.0);
        assert!(few.own == 0.0 && few.stretch[0].windows(2).all(|pair| pair[0] == pair[1]));
    }

    #[test]
    fn a_level_counts_one_more_and_weights_count_as_rows() {
        let scores = |n: i32| (1..=n).map(|i| (f64::from(i), 1.0)).collect::<Vec<_>>();
        // ⌈0.8 · 10⌉ of nine; more than there are gives the last.
        assert_eq!(conformal(scores(9), 0.8), Some(8.0));
        assert_eq!(conformal(scores(3), 0.9), Some(3.0));
        assert_eq!(conformal(vec![], 0.9), None);
        let weighted = vec![(1.0, 7.0), (2.0, 1.0), (3.0, 1.0)];
        assert_eq!(conformal(weighted, 0.5), Some(1.0));
    }

    #[test]
    fn a_median_beyond_the_targets_leaves_the_order() {
        let mut off = sample(50, 3, &[1.0; 4], &[-0.5, 0.0, 0.5]);
        off.target.iter_mut().for_each(|target| *target -= 3.0);
        let found = fit(&off, &[0.1, 0.5, 0.9], 1.0);
        assert!(found.stretch[1].iter().all(|factor| (factor - STRETCH.0).abs() < 1e-12), "{found:?}");
        assert!(found.stretch[0].iter().all(|factor| *factor > 1.0));
    }
}
