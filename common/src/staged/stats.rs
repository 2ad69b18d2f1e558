//! Running moments of a column, in f64: Welford's update for one value, Chan's formula for two parts.
//!
//! **Invariant:** the order in which parts are merged changes the result by no more than rounding (1e-12 relative).

use super::meta::Stats;

/// Count, mean, sum of squared deviations and range of the values seen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moments {
    n: u64,
    mean: f64,
    m2: f64,
    min: f64,
    max: f64,
}

impl Default for Moments {
    fn default() -> Self {
        Self { n: 0, mean: 0.0, m2: 0.0, min: f64::INFINITY, max: f64::NEG_INFINITY }
    }
}

impl Moments {
    pub fn n(&self) -> u64 {
        self.n
    }

    pub fn push(&mut self, value: f64) {
        self.n += 1;
        let delta = value - self.mean;
        self.mean += delta / self.n as f64;
        self.m2 += delta * (value - self.mean);
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    /// Moments of a block from its sums about `shift`: Σ(v − shift) and Σ(v − shift)². A shift near the mean (any value of the
    /// column will do) keeps the difference of the two sums accurate.
    pub fn of_shifted_sums(n: u64, shift: f64, sum: f64, sum_squares: f64, range: (f64, f64)) -> Self {
        if n == 0 {
            return Self::default();
        }
        let mean = sum / n as f64;
        Self { n, mean: shift + mean, m2: (sum_squares - sum * mean).max(0.0), min: range.0, max: range.1 }
    }

    /// Takes the values of another part in.
    pub fn merge(&mut self, other: &Self) {
        if other.n == 0 {
            return;
        }
        if self.n == 0 {
            *self = *other;
            return;
        }
        let n_self = self.n as f64;
        let n_other = other.n as f64;
        let n = n_self + n_other;
        let delta = other.mean - self.mean;
        // The symmetric form of the mean: a + δ·(n_b/n) would depend on which part is the larger.
        self.mean = (n_self * self.mean + n_other * other.mean) / n;
        self.m2 += other.m2 + delta * delta * (n_self * n_other / n);
        self.n += other.n;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// Whether no two values seen differ. True when nothing was seen.
    pub fn is_constant(&self) -> bool {
        self.n == 0 || self.min == self.max
    }

    /// The figures that meta.json keeps. All zero when nothing was seen; the deviation of a constant is exactly 0.
    pub fn stats(&self) -> Stats {
        if self.n == 0 {
            return Stats { n: 0, mean: 0.0, std: 0.0, min: 0.0, max: 0.0 };
        }
        let std = if self.is_constant() { 0.0 } else { (self.m2 / self.n as f64).sqrt() };
        let mean = self.mean.clamp(self.min, self.max);
        Stats { n: self.n, mean, std, min: self.min, max: self.max }
    }
}

impl<'a> FromIterator<&'a f64> for Moments {
    fn from_iter<I: IntoIterator<Item = &'a f64>>(values: I) -> Self {
        let mut moments = Self::default();
        values.into_iter().for_each(|value| moments.push(*value));
        moments
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn close(a: f64, b: f64, scale: f64) -> bool {
        (a - b).abs() <= 1e-12 * scale.max(1e-300)
    }

    /// Two passes: the definition.
    fn exact(values: &[f64]) -> (f64, f64) {
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let variance = values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n;
        (mean, variance.sqrt())
    }

    #[test]
    fn an_offset_does_not_swallow_the_spread() {
        let values: Vec<f64> = (0..1000).map(|i| 1e9 + f64::from(i % 10)).collect();
        let stats = values.iter().collect::<Moments>().stats();
        assert!((stats.std - 8.25f64.sqrt()).abs() < 1e-6, "{}", stats.std);
        let sum: f64 = values.iter().map(|v| v - values[0]).sum();
        let squares: f64 = values.iter().map(|v| (v - values[0]).powi(2)).sum();
        let block = Moments::of_shifted_sums(1000, values[0], sum, squares, (1e9, 1e9 + 9.0)).stats();
        assert!((block.std - 8.25f64.sqrt()).abs() < 1e-9, "{}", block.std);
    }

    #[test]
    fn a_constant_has_no_spread_and_nothing_has_no_figures() {
        let stats = [0.1; 7].iter().collect::<Moments>().stats();
        assert_eq!((stats.n, stats.mean, stats.std), (7, 0.1, 0.0));
        assert_eq!(Moments::default().stats(), Stats { n: 0, mean: 0.0, std: 0.0, min: 0.0, max: 0.0 });
    }

    proptest! {
        #[test]
        fn any_grouping_and_order_agree(
            values in prop::collection::vec(-1e6f64..1e6, 2..200),
            cuts in prop::collection::vec(0usize..200, 0..8),
            reverse: bool,
        ) {
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % values.len()).collect();
            cuts.extend([0, values.len()]);
            cuts.sort_unstable();
            let mut parts: Vec<Moments> = cuts.windows(2).map(|w| values[w[0]..w[1]].iter().collect()).collect();
            if reverse {
                parts.reverse();
            }
            let mut merged = Moments::default();
            parts.iter().for_each(|part| merged.merge(part));
            let stats = merged.stats();
            let (mean, std) = exact(&values);
            let scale = stats.max.abs().max(stats.min.abs());
            prop_assert_eq!(stats.n, values.len() as u64);
            prop_assert!(close(stats.mean, mean, scale), "{} {}", stats.mean, mean);
            prop_assert!(close(stats.std, std, scale), "{} {}", stats.std, std);
            prop_assert_eq!(stats.max, values.iter().copied().fold(f64::MIN, f64::max));
        }
    }
}
