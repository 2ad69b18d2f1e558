//! From values to places on the page, and the round numbers that are written along an axis.

/// A linear or logarithmic map of a domain onto a range of the drawing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Scale {
    domain: (f64, f64),
    range: (f64, f64),
    logarithmic: bool,
}

impl Scale {
    /// Linear over `domain`, which is widened when it is empty or not finite.
    pub(super) fn linear(domain: (f64, f64), range: (f64, f64)) -> Self {
        let (low, high) = domain;
        let domain = if !(low.is_finite() && high.is_finite()) {
            (0.0, 1.0)
        } else if high - low <= 1e-12 * low.abs().max(high.abs()) {
            (low - 0.5, high + 0.5)
        } else {
            domain
        };
        Self { domain, range, logarithmic: false }
    }

    /// Logarithmic over `domain`; linear when that is not positive or spans less than a factor of 20.
    pub(super) fn spanning(domain: (f64, f64), range: (f64, f64)) -> Self {
        let (low, high) = domain;
        if low > 0.0 && high.is_finite() && high / low > 20.0 {
            Self { domain, range, logarithmic: true }
        } else {
            Self::linear((low.min(0.0), high), range)
        }
    }

    /// Widens the domain to round numbers.
    pub(super) fn rounded(mut self, ticks: usize) -> Self {
        if !self.logarithmic {
            let step = step(self.domain, ticks);
            self.domain = ((self.domain.0 / step).floor() * step, (self.domain.1 / step).ceil() * step);
        }
        self
    }

    /// Where `value` is drawn.
    pub(super) fn at(&self, value: f64) -> f64 {
        let (low, high) = self.domain;
        let share = if self.logarithmic {
            (value.max(1e-300).ln() - low.ln()) / (high.ln() - low.ln())
        } else {
            (value - low) / (high - low)
        };
        self.range.0 + share * (self.range.1 - self.range.0)
    }

    /// The values at both ends.
    pub(super) fn domain(&self) -> (f64, f64) {
        self.domain
    }

    /// The ends of the range.
    pub(super) fn range(&self) -> (f64, f64) {
        self.range
    }

    /// About `count` round values and how they are written.
    pub(super) fn ticks(&self, count: usize) -> Vec<(f64, String)> {
        if self.logarithmic {
            return self.decades();
        }
        let (low, high) = self.domain;
        let step = step(self.domain, count);
        let decimals = (-step.log10() - 1e-9).ceil().clamp(0.0, 12.0) as usize;
        let first = (low / step - 1e-9).ceil() as i64;
        let last = (high / step + 1e-9).floor() as i64;
        (first..=last).map(|i| i as f64 * step).map(|value| (value, written(value, decimals))).collect()
    }

    fn decades(&self) -> Vec<(f64, String)> {
        let (low, high) = self.domain;
        let first = low.log10().floor() as i32;
        let last = high.log10().ceil() as i32;
        let factors: &[f64] = if last - first <= 3 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let all =
            (first..=last).flat_map(|power| factors.iter().map(move |factor| (factor * 10f64.powi(power), power)));
        let within = all.filter(|(value, _)| *value >= low * 0.999 && *value <= high * 1.001);
        within.map(|(value, power)| (value, written(value, usize::try_from(-power).unwrap_or(0)))).collect()
    }
}

/// The least and the largest finite value; infinite when there is none.
pub(super) fn extent(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let finite = values.filter(|value| value.is_finite());
    finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)))
}

/// The round step (1, 2 or 5 times a power of ten) that makes about `count` ticks.
fn step(domain: (f64, f64), count: usize) -> f64 {
    let raw = (domain.1 - domain.0) / count.max(1) as f64;
    let power = 10f64.powf(raw.log10().floor());
    let factor = raw / power;
    let round = [(1.5, 1.0), (3.5, 2.0), (7.5, 5.0)].iter().find(|(below, _)| factor < *below);
    power * round.map_or(10.0, |(_, round)| *round)
}

fn written(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    // Zero has no sign, and a minus is wider than a hyphen.
    if text.trim_start_matches('-').chars().all(|c| c == '0' || c == '.') {
        text.replace('-', "")
    } else {
        text.replace('-', "−")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn labels(scale: Scale, count: usize) -> Vec<String> {
        scale.ticks(count).into_iter().map(|(_, label)| label).collect()
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(labels(Scale::linear((0.0, 24.0), (0.0, 1.0)), 5), ["0", "5", "10", "15", "20"]);
        assert_eq!(labels(Scale::linear((-1.0, 1.0), (0.0, 1.0)), 4), ["−1.0", "−0.5", "0.0", "0.5", "1.0"]);
        assert_eq!(labels(Scale::linear((0.0, 0.1), (0.0, 1.0)), 5), ["0.00", "0.02", "0.04", "0.06", "0.08", "0.10"]);
        assert_eq!(
            labels(Scale::spanning((0.02, 3.0), (0.0, 1.0)), 5),
            ["0.02", "0.05", "0.1", "0.2", "0.5", "1", "2"]
        );
    }

    proptest! {
        /// Few ticks, inside the domain, and places inside the range for values inside the domain.
        #[test]
        fn a_scale_is_sane(low in -1e6f64..1e6, span in 1e-6f64..1e6, count in 3usize..9, share in 0.0f64..1.0) {
            let scale = Scale::linear((low, low + span), (10.0, 200.0)).rounded(count);
            let ticks = scale.ticks(count);
            prop_assert!((2..=3 * count + 2).contains(&ticks.len()), "{} ticks", ticks.len());
            for value in ticks.iter().map(|tick| tick.0).chain([low + share * span]) {
                prop_assert!((9.9..=200.1).contains(&scale.at(value)));
            }
        }
    }

    #[test]
    fn an_empty_domain_is_widened() {
        assert_eq!(Scale::linear((3.0, 3.0), (0.0, 1.0)).domain(), (2.5, 3.5));
        assert_eq!(Scale::linear((f64::NAN, 1.0), (0.0, 1.0)).domain(), (0.0, 1.0));
    }
}
