//! Outliers: values more than a million times as far from their column's median as most values that differ from it. A single outlier
//! would dominate the mean and the spread of its column. Outliers count as missing, in every split. Values that are a thousand times as
//! far are kept, with a note: data with heavy tails contain them.
//!
//! **Invariant:** the median is that of training samples; a column with a declared range (`data.ranges`) has no limits, and neither has a
//! column with too few values to estimate its spread.

use super::{error::StageError, output::Output, stats::SampleStats};
use enn_common::staged::{
    Split,
    meta::{StagedMeta, Stats},
};

/// Distances from the median, in multiples of the usual distance: of outliers, and of values with a note.
const FAR: f64 = 1e6;
const ODD: f64 = 1e3;
/// Quantile of the nonzero distances that is the usual distance.
const MOST: f64 = 0.75;
const VARYING_MIN: f64 = 1.0 / 16.0;
const VALUES_MIN: usize = 8;
/// Maximum training samples, which bounds the time, and maximum numbers in them, which bounds the memory.
const ROWS_MAX: u64 = 4096;
const NUMBERS_MAX: u64 = 16 << 20;
/// Minimum samples, also of the widest table.
const ROWS_MIN: u64 = 32;

/// Inclusive range of accepted values, low and high.
pub(crate) type Range = (f64, f64);

#[derive(Debug, PartialEq)]
pub(crate) struct Limits {
    pub(crate) x: Vec<Range>,
    pub(crate) y: Vec<Range>,
}

#[derive(Debug, PartialEq, Default)]
pub(crate) struct OutlierCounts {
    pub(crate) x: Vec<u64>,
    pub(crate) y: Vec<u64>,
}

/// Range that accepts every value.
pub(crate) const ANY: Range = (f64::NEG_INFINITY, f64::INFINITY);
/// Range that accepts no value.
pub(crate) const NONE: Range = (f64::INFINITY, f64::NEG_INFINITY);

impl Limits {
    /// Estimates limits from a sample of the training rows: of outliers, and of values without a note.
    pub(crate) fn of_training(output: &Output) -> Result<[Self; 2], StageError> {
        let width = (output.features + output.outputs) as u64;
        let wanted = (NUMBERS_MAX / width.max(1)).clamp(ROWS_MIN, ROWS_MAX).min(output.rows);
        let mut x = Vec::new();
        let mut y = Vec::new();
        for row in (0..wanted).map(|at| (u128::from(at) * u128::from(output.rows) / u128::from(wanted)) as u64) {
            if output.read_split(row..row + 1)?[0] == Split::Train as u8 {
                x.extend(output.read_x(row..row + 1)?);
                y.extend(output.read_y(row..row + 1)?);
            }
        }
        let of = |numbers: &[f32], width: usize| -> Vec<Option<Centre>> {
            let column = |column| numbers.iter().skip(column).step_by(width).copied().filter(|value| !value.is_nan());
            (0..width).map(|at| Centre::of(column(at).map(f64::from).collect())).collect()
        };
        let x = of(&x, output.features);
        let y = of(&y, if output.has_targets() { output.outputs } else { 0 });
        let range = |times: f64| move |centre: &Option<Centre>| centre.map_or(ANY, |centre| centre.range(times));
        let limits = |times| Self { x: x.iter().map(range(times)).collect(), y: y.iter().map(range(times)).collect() };
        Ok([FAR, ODD].map(limits))
    }

    /// Derives limits from the ranges of the training data: of outliers, and of values without a note. `places` are the indices of the
    /// inputs among the model's, `None` for other inputs.
    pub(crate) fn of_model(meta: &StagedMeta, places: &[Option<usize>], has_targets: bool) -> [Self; 2] {
        let targets = if has_targets { &meta.y_stats[..] } else { &[] };
        let limits = |times: f64| {
            let of = |stats: &Stats| match stats.n {
                0 => ANY,
                _ => {
                    let reach = if stats.max > stats.min { stats.max - stats.min } else { stats.mean.abs().max(1.0) };
                    (stats.min - times * reach, stats.max + times * reach)
                }
            };
            let input = |place: &Option<usize>| place.map_or(ANY, |place| of(&meta.x_stats[place]));
            Self { x: places.iter().map(input).collect(), y: targets.iter().map(of).collect() }
        };
        [FAR, ODD].map(limits)
    }

    /// Returns the input columns and target cells with values outside the limits.
    pub(crate) fn exceeded(&self, stats: &SampleStats) -> (Vec<usize>, Vec<usize>) {
        let passed = |limits: &[Range], reach: &[Range]| {
            let beyond = |at: &usize| reach[*at].0 < limits[*at].0 || reach[*at].1 > limits[*at].1;
            (0..limits.len()).filter(beyond).collect()
        };
        (passed(&self.x, &stats.x_reach), passed(&self.y, &stats.y_reach))
    }

    /// Marks the values outside the limits as missing in the arrays, and counts them.
    pub(crate) fn mask(&self, output: &Output) -> Result<OutlierCounts, StageError> {
        output.invalidate_resume()?;
        let mut found = OutlierCounts { x: vec![0; self.x.len()], y: vec![0; self.y.len()] };
        for rows in output.chunks() {
            let mut x = output.read_x(rows.clone())?;
            let mut y = output.read_y(rows.clone())?;
            mask_outliers(&mut x, &self.x, &mut found.x);
            mask_outliers(&mut y, &self.y, &mut found.y);
            output.put_numbers(rows.start, &x, &y)?;
        }
        Ok(found)
    }
}

/// Replaces values outside their columns' limits by NaN, and counts them per column.
pub(crate) fn mask_outliers(numbers: &mut [f32], limits: &[Range], found: &mut [u64]) {
    for row in numbers.chunks_exact_mut(limits.len().max(1)) {
        for ((value, (low, high)), found) in row.iter_mut().zip(limits).zip(found.iter_mut()) {
            if f64::from(*value) < *low || f64::from(*value) > *high {
                *value = f32::NAN;
                *found += 1;
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Centre {
    median: f64,
    /// Usual distance from the median; the median's distance from 0 where too few values differ from it.
    most: f64,
}

impl Centre {
    /// Returns `None` if there are too few values, or all are 0.
    fn of(mut values: Vec<f64>) -> Option<Self> {
        if values.len() < VALUES_MIN {
            return None;
        }
        values.sort_unstable_by(f64::total_cmp);
        let median = values[values.len() / 2];
        let mut distances: Vec<f64> =
            values.iter().map(|value| (value - median).abs()).filter(|distance| *distance > 0.0).collect();
        distances.sort_unstable_by(f64::total_cmp);
        let varies = distances.len() as f64 >= VARYING_MIN * values.len() as f64;
        let most = if varies { distances[(MOST * distances.len() as f64) as usize] } else { median.abs() };
        (most > 0.0).then_some(Self { median, most })
    }

    fn range(self, times: f64) -> Range {
        (self.median - times * self.most, self.median + times * self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_meant_is_beyond_and_heavy_tails_are_not() {
        let normal: Vec<f64> = (0..1000).map(|i| f64::from(i % 37) - 18.0).collect();
        let beyond = |values: &[f64], value: f64| {
            let (low, high) = Centre::of(values.to_vec()).map_or(ANY, |centre| centre.range(FAR));
            value < low || value > high
        };
        assert!(beyond(&normal, 1e30) && beyond(&normal, -1e9) && !beyond(&normal, 1e6));
        let poisoned = [&normal[..], &[1e30; 10]].concat();
        assert!(beyond(&poisoned, 1e30), "one in a hundred of them does not hide the rest");
        // Twelve orders of magnitude, evenly spread in their logarithm.
        let wide: Vec<f64> = (0..1000).map(|i| 10f64.powf(f64::from(i) * 0.012)).collect();
        assert!(wide.iter().all(|value| !beyond(&wide, *value)));
        // A constant with an exception in a hundred is judged by its size; mostly nothing is not judged at all.
        let constant = [&[3.5; 99][..], &[1e30]].concat();
        assert!(beyond(&constant, 1e30) && !beyond(&constant, 1e6));
        let rare = [&[0.0; 99][..], &[1e9]].concat();
        assert!(!beyond(&rare, 1e9));
        assert!(!beyond(&[1.0, 2.0, 3.0], 1e30), "three values say nothing");
    }

    #[test]
    fn values_beyond_become_missing_and_are_counted() {
        let mut numbers = [1.0, 1e30, f32::NAN, 2.0, -1e30, 5.0];
        let mut found = vec![0; 2];
        mask_outliers(&mut numbers, &[(-10.0, 10.0), ANY], &mut found);
        assert_eq!(found, [1, 0]);
        assert!(numbers[4].is_nan() && numbers[1] == 1e30 && numbers[2].is_nan());
    }
}
