//! Shift and slope of the location by cell, shrunk towards none, and kept only where cross-validation says that they help.
//!
//! **Invariant:** pure. Folds are contiguous parts of the validation rows, so that days next to each other judge nothing about each other.

use super::sample::Sample;
use std::ops::Range;

const FOLDS: usize = 5;
/// Rows of a prior that says "no shift, slope 1"; the best is chosen.
const PRIORS: [f64; 5] = [8.0, 32.0, 128.0, 512.0, 2048.0];
/// Standard errors over the folds by which the error must fall.
const BETTER_BY: f64 = 2.0;

#[derive(Debug)]
pub(crate) struct Chosen {
    /// Shift and slope by cell; `None`: answers are the model's own.
    pub(crate) maps: Option<[Vec<f64>; 2]>,
    /// Cross-validated mean absolute errors in the target's unit: without, and with the best prior.
    errors: [f64; 2],
    prior: f64,
}

/// The best prior's maps; unless `always`, only when they lower the error for sure. `spread` is the unit of a cell.
pub(crate) fn choose(sample: &Sample, spread: &[f64], always: bool) -> Chosen {
    let edge = |fold: usize| sample.rows * fold / FOLDS;
    let folds: Vec<Range<usize>> = (0..FOLDS).map(|fold| edge(fold)..edge(fold + 1)).collect();
    let moments: Vec<Vec<Moments>> = folds.iter().map(|rows| by_cell(sample, rows.clone())).collect();
    let others = |left_out: usize| -> Vec<Moments> {
        let sum = |cell: usize| {
            let parts = moments.iter().enumerate().filter(|(fold, _)| *fold != left_out).map(|(_, part)| &part[cell]);
            parts.fold(Moments::default(), |sum, part| sum.with(part))
        };
        (0..sample.cells).map(sum).collect()
    };
    let trained: Vec<Vec<Moments>> = (0..FOLDS).map(others).collect();
    let errors = |prior: Option<f64>| -> Vec<[f64; 2]> {
        let maps = |fold: usize| prior.map(|prior| maps(&trained[fold], prior));
        folds.iter().enumerate().map(|(fold, rows)| error(sample, spread, rows.clone(), maps(fold).as_ref())).collect()
    };
    let mean = |folds: &[[f64; 2]]| folds.iter().map(|f| f[0]).sum::<f64>() / folds.iter().map(|f| f[1]).sum::<f64>();
    let without = errors(None);
    let tried = PRIORS.map(|prior| (prior, errors(Some(prior))));
    let best = tried.iter().min_by(|one, other| mean(&one.1).total_cmp(&mean(&other.1)));
    let Some((prior, with)) = best else { unreachable!("there are priors") };
    let gains: Vec<f64> = without.iter().zip(with).map(|(a, b)| (a[0] - b[0]) / a[1].max(f64::MIN_POSITIVE)).collect();
    let gain = gains.iter().sum::<f64>() / FOLDS as f64;
    let deviation = gains.iter().map(|g| (g - gain).powi(2)).sum::<f64>() / (FOLDS * (FOLDS - 1)) as f64;
    let all = moments.iter().fold(vec![Moments::default(); sample.cells], |sum, part| {
        sum.iter().zip(part).map(|(sum, part)| sum.with(part)).collect()
    });
    let kept = always || gain > BETTER_BY * deviation.sqrt();
    Chosen { maps: kept.then(|| maps(&all, *prior)), errors: [mean(&without), mean(with)], prior: *prior }
}

impl Chosen {
    /// The decision as a sentence for the user.
    pub(crate) fn decision(&self, unit: &str) -> String {
        let [without, with] = self.errors.map(|error| format!("{error:.4}"));
        let what = if self.maps.is_some() { "kept" } else { "left out" };
        let unit = if unit.is_empty() { "" } else { unit };
        format!(
            "affine calibration {what}: mean absolute error over {FOLDS} parts of the validation rows, each by the others, {without} \
             without and {with}{}{unit} with it (prior of {} rows)",
            if unit.is_empty() { "" } else { " " },
            self.prior
        )
    }
}

/// Weighted sums of residuals r and locations z of a cell.
#[derive(Debug, Clone, Default)]
struct Moments {
    n: f64,
    z: f64,
    r: f64,
    zz: f64,
    rz: f64,
}

impl Moments {
    fn with(&self, other: &Self) -> Self {
        let Self { n, z, r, zz, rz } = self;
        Self { n: n + other.n, z: z + other.z, r: r + other.r, zz: zz + other.zz, rz: rz + other.rz }
    }
}

fn by_cell(sample: &Sample, rows: Range<usize>) -> Vec<Moments> {
    let mut all = vec![Moments::default(); sample.cells];
    for i in rows.start * sample.cells..rows.end * sample.cells {
        let w = sample.weight[i];
        let z = sample.location()[i];
        let r = sample.target[i] - z;
        let one = Moments { n: w, z: w * z, r: w * r, zz: w * z * z, rz: w * r * z };
        all[i % sample.cells] = all[i % sample.cells].with(&one);
    }
    all
}

/// Least squares of r ≈ a + c (z − mean z) with so many rows that say a = c = 0, as maps of z.
fn maps(moments: &[Moments], prior: f64) -> [Vec<f64>; 2] {
    let of = |m: &Moments| {
        let (mean, shift) = if m.n > 0.0 { (m.z / m.n, m.r / (m.n + prior)) } else { (0.0, 0.0) };
        let spread = m.zz - mean * m.z;
        let along = m.rz - mean * m.r;
        let slope = if spread > 0.0 { along / spread * m.n / (m.n + prior) } else { 0.0 };
        (shift - slope * mean, 1.0 + slope)
    };
    let (shift, slope) = moments.iter().map(of).unzip();
    [shift, slope]
}

/// Sum of the absolute errors of rows in the target's unit, and of weights.
fn error(sample: &Sample, spread: &[f64], rows: Range<usize>, maps: Option<&[Vec<f64>; 2]>) -> [f64; 2] {
    let mut sums = [0.0, 0.0];
    for i in rows.start * sample.cells..rows.end * sample.cells {
        let cell = i % sample.cells;
        let z = sample.location()[i];
        let moved = maps.map_or(z, |[shift, slope]| shift[cell] + slope[cell] * z);
        sums[0] += sample.weight[i] * (sample.target[i] - moved).abs() * spread[cell];
        sums[1] += sample.weight[i];
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use enn_common::mix::mix;

    /// Targets a + b·z + noise.
    fn sample(rows: usize, (a, b, noise): (f64, f64, f64)) -> Sample {
        let cells = 3;
        let uniform =
            |i: usize, salt: u64| 2.0 * (mix(i as u64 + (salt << 32)) >> 11) as f64 / (1u64 << 53) as f64 - 1.0;
        let z: Vec<f64> = (0..rows * cells).map(|i| uniform(i, 1)).collect();
        let target = z.iter().enumerate().map(|(i, z)| a + b * z + noise * uniform(i, 2)).collect();
        Sample { rows, cells, weight: vec![1.0; rows * cells], target, quantiles: vec![z], middle: 0 }
    }

    #[test]
    fn a_shift_and_a_slope_that_are_there_are_found() {
        let chosen = choose(&sample(400, (0.5, 0.7, 0.1)), &[2.0; 3], false);
        let [shift, slope] = chosen.maps.unwrap();
        for (a, b) in shift.iter().zip(&slope) {
            assert!((a - 0.5).abs() < 0.03 && (b - 0.7).abs() < 0.03, "{a} {b}");
        }
        assert!(chosen.errors[1] < 0.5 * chosen.errors[0]);
    }

    #[test]
    fn noise_is_not_learnt_unless_it_must() {
        // Residuals of both signs at every location, in every fold.
        let mut noise = sample(40, (0.0, 1.0, 0.0));
        for (i, z) in noise.quantiles[0].iter_mut().enumerate() {
            let row = i / 3;
            *z = if row % 4 < 2 { 0.0 } else { 1.0 };
            noise.target[i] = *z + if row % 2 == 0 { 1.0 } else { -1.0 };
        }
        let chosen = choose(&noise, &[1.0; 3], false);
        assert!(chosen.maps.is_none(), "{chosen:?}");
        assert!(chosen.decision("°F").starts_with("affine calibration left out"), "{}", chosen.decision("°F"));
        assert!(choose(&noise, &[1.0; 3], true).maps.is_some());
    }

    #[test]
    fn a_cell_of_another_unit_does_not_decide_alone() {
        // Two cells are off by a half; the third is only noise.
        let mut mixed = sample(400, (0.5, 1.0, 0.1));
        for row in 0..400 {
            mixed.target[row * 3] = mixed.quantiles[0][row * 3] + if row % 2 == 0 { 1.0 } else { -1.0 };
        }
        assert!(choose(&mixed, &[1e6, 1.0, 1.0], false).maps.is_none());
        assert!(choose(&mixed, &[1.0; 3], false).maps.is_some());
    }

    #[test]
    fn cells_without_targets_stay_as_they_are() {
        let mut blank = sample(40, (0.5, 1.0, 0.0));
        (0..40).for_each(|row| blank.weight[row * 3] = 0.0);
        let [shift, slope] = choose(&blank, &[1.0; 3], true).maps.unwrap();
        assert_eq!((shift[0], slope[0]), (0.0, 1.0));
        assert!(shift[1] > 0.1);
    }
}
