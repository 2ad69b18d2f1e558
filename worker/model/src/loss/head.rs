//! Numbers that a model predicts for each cell besides its location, and the quantiles that follow from them.
//!
//! ```text
//! quantile                  one gap ≥ 0 per level but the median: q₀.₅ = z, q of the next level above = q + gap, below = q − gap
//! gaussian, crps, student_t one scale σ ≥ SCALE_MIN:               q of a level = z + σ·Q(level), Q of the standard distribution
//! ```
//! **Invariant:** quantiles rise with their level whatever the weights are; the quantile of the median is the location z itself.

use enn_common::config::train::{Loss, MEDIAN, TrainConfig};
use enn_core::{
    autograd::{Cx, Tensor},
    error::OpError,
    functional,
};
use statrs::distribution::{ContinuousCDF, Normal, StudentsT};

/// Minimum scale, in target standard deviations: without it the density could grow without bound on a cell that hardly
/// varies.
pub(super) const SCALE_MIN: f64 = 1e-3;
/// Minimum and maximum of the initial spread: residuals of the fitted rows are too small.
const START_SPREAD: (f64, f64) = (0.05, 1.0);

/// Numbers predicted per cell.
#[derive(Debug, Clone, PartialEq)]
pub enum Head {
    /// Only the location.
    Point,
    /// The median and gaps to the other levels.
    Quantiles {
        /// Levels in ascending order, including the median.
        levels: Vec<f64>,
    },
    /// Location and scale of a distribution.
    Scale {
        /// Quantiles of the standard distribution at the levels, in ascending order.
        offsets: Vec<f64>,
    },
    /// Logits; each output cell is a class.
    Classes,
}

impl Head {
    pub fn new(config: &TrainConfig) -> Self {
        let levels = config.levels.clone();
        let of = |quantile: &dyn Fn(f64) -> f64| {
            // The median of both distributions is exactly 0; a root finder returns it only up to rounding.
            let exact = |level: &f64| if *level == MEDIAN { 0.0 } else { quantile(*level) };
            Self::Scale { offsets: config.levels.iter().map(exact).collect() }
        };
        match config.loss {
            Loss::Mse | Loss::Huber => Self::Point,
            // With the median as the only level there are no gaps.
            Loss::Quantile if levels.len() == 1 => Self::Point,
            Loss::Quantile => Self::Quantiles { levels },
            Loss::Gaussian | Loss::Crps => of(&normal_quantile),
            Loss::StudentT => of(&|level| students_t_quantile(config.degrees_of_freedom, level)),
            Loss::CrossEntropy => Self::Classes,
        }
    }

    /// Returns P, the numbers per cell besides the location.
    pub fn channels(&self) -> i64 {
        match self {
            Self::Quantiles { levels } => levels.len() as i64 - 1,
            Self::Scale { .. } => 1,
            Self::Point | Self::Classes => 0,
        }
    }

    /// Returns the initial value of each channel for a cell whose residuals have this spread in target standard
    /// deviations.
    pub fn start(&self, spread: f64) -> Vec<f64> {
        let spread = spread.clamp(START_SPREAD.0, START_SPREAD.1);
        match self {
            Self::Quantiles { levels } => {
                let normal: Vec<f64> = levels.iter().map(|level| normal_quantile(*level)).collect();
                normal.windows(2).map(|pair| softplus_inverse(spread * (pair[1] - pair[0]))).collect()
            }
            Self::Scale { .. } => vec![softplus_inverse(spread - SCALE_MIN)],
            Self::Point | Self::Classes => Vec::new(),
        }
    }

    /// Converts raw outputs (B, P, O) to channels: gaps, or scales of at least `SCALE_MIN`. The map is linear for large
    /// numbers, so that nothing overflows.
    pub fn channels_of(&self, cx: &Cx, raw: &Tensor) -> Result<Tensor, OpError> {
        let positive = functional::softplus(cx, raw)?;
        if matches!(self, Self::Scale { .. }) { functional::add_scalar(cx, &positive, SCALE_MIN) } else { Ok(positive) }
    }

    /// Maps location (B, O) and channels (B, P, O) to quantiles, one (B, O) per level; empty for a head without
    /// quantiles.
    pub fn quantiles(&self, cx: &Cx, z: &Tensor, channels: Option<&Tensor>) -> Result<Vec<Tensor>, OpError> {
        match (self, channels) {
            (Self::Quantiles { levels }, Some(channels)) => {
                outwards(cx, z, levels.len(), middle(levels), &|at| row(cx, channels, 1, at))
            }
            (Self::Scale { offsets }, Some(channels)) => {
                let scale = scale(cx, channels)?;
                let at = |offset: &f64| functional::add(cx, z, &functional::scale(cx, &scale, *offset)?);
                offsets.iter().map(at).collect()
            }
            _ => Ok(Vec::new()),
        }
    }

    /// Computes [`Head::quantiles`] with the distances between levels multiplied by `stretch` (levels − 1, O), which is
    /// not negative.
    pub fn stretched(
        &self,
        cx: &Cx,
        z: &Tensor,
        channels: Option<&Tensor>,
        stretch: &Tensor,
    ) -> Result<Vec<Tensor>, OpError> {
        match (self, channels) {
            (Self::Quantiles { levels }, Some(channels)) => {
                let gap = |at: usize| functional::mul(cx, &row(cx, channels, 1, at)?, &row(cx, stretch, 0, at)?);
                outwards(cx, z, levels.len(), middle(levels), &gap)
            }
            (Self::Scale { offsets }, Some(channels)) => {
                let scale = scale(cx, channels)?;
                let gap = |at: usize| {
                    let wide = functional::mul(cx, &scale, &row(cx, stretch, 0, at)?)?;
                    functional::scale(cx, &wide, offsets[at + 1] - offsets[at])
                };
                let middle = offsets.iter().position(|offset| *offset == 0.0).unwrap_or(0);
                outwards(cx, z, offsets.len(), middle, &gap)
            }
            _ => Ok(Vec::new()),
        }
    }
}

pub(super) fn middle(levels: &[f64]) -> usize {
    levels.iter().position(|level| *level == MEDIAN).unwrap_or(0)
}

/// Selects index `at` of an axis and removes the axis.
fn row(cx: &Cx, all: &Tensor, axis: i64, at: usize) -> Result<Tensor, OpError> {
    functional::squeeze(cx, &functional::narrow(cx, all, axis, at as i64, 1)?, axis)
}

/// Computes quantiles from the median z at index `middle` outwards, where `gap` gives the distance of two neighbouring
/// levels.
fn outwards(
    cx: &Cx,
    z: &Tensor,
    levels: usize,
    middle: usize,
    gap: &dyn Fn(usize) -> Result<Tensor, OpError>,
) -> Result<Vec<Tensor>, OpError> {
    let mut all = vec![z.clone(); levels];
    for at in (0..middle).rev() {
        all[at] = functional::sub(cx, &all[at + 1], &gap(at)?)?;
    }
    for at in middle + 1..levels {
        all[at] = functional::add(cx, &all[at - 1], &gap(at - 1)?)?;
    }
    Ok(all)
}

/// Maps one channel (B, 1, O) to scales σ (B, O).
pub(super) fn scale(cx: &Cx, channels: &Tensor) -> Result<Tensor, OpError> {
    functional::squeeze(cx, channels, 1)
}

/// Returns a quantile of the standard normal distribution.
fn normal_quantile(level: f64) -> f64 {
    Normal::standard().inverse_cdf(level)
}

/// Returns a quantile of Student's t distribution with ν degrees of freedom.
fn students_t_quantile(freedom: f64, level: f64) -> f64 {
    // The parameters are within the range of the configuration; the normal distribution is the limit for large ν.
    StudentsT::new(0.0, 1.0, freedom).map_or_else(|_| normal_quantile(level), |t| t.inverse_cdf(level))
}

/// Returns x with ln(1 + eˣ) = y, for y > 0.
fn softplus_inverse(y: f64) -> f64 {
    y + (-(-y).exp()).ln_1p()
}

#[cfg(test)]
mod tests {
    use super::*;
    use enn_core::params::ParamBuilder;
    use tch::{Device, Kind, Tensor as Raw};

    #[test]
    fn quantiles_of_the_distributions_are_the_published_ones() {
        // NIST/SEMATECH e-Handbook, tables 1.3.6.7.1 and 1.3.6.7.2.
        let close = |found: f64, expected: f64| assert!((found - expected).abs() < 6e-4, "{found}, not {expected}");
        for (freedom, level, expected) in [
            (1.0, 0.9, 3.078),
            (1.0, 0.975, 12.706),
            (2.0, 0.95, 2.920),
            (4.0, 0.9, 1.533),
            (4.0, 0.975, 2.776),
            (10.0, 0.99, 2.764),
            (30.0, 0.95, 1.697),
            (100.0, 0.975, 1.984),
        ] {
            close(students_t_quantile(freedom, level), expected);
            close(students_t_quantile(freedom, 1.0 - level), -expected);
        }
        // ν = 2 has a closed form: t = (2p − 1)/√(2p(1 − p)).
        let p: f64 = 0.8;
        assert!((students_t_quantile(2.0, p) - (2.0 * p - 1.0) / (2.0 * p * (1.0 - p)).sqrt()).abs() < 1e-9);
        assert!((normal_quantile(0.9) - 1.281_551_565_544_600_4).abs() < 1e-12);
        // The first terms of its expansion in 1/ν about the normal one.
        close(students_t_quantile(1e3, 0.9), 1.282_399);
    }

    fn head(loss: Loss, levels: &[f64]) -> Head {
        Head::new(&TrainConfig { loss, levels: levels.to_vec(), ..TrainConfig::default() })
    }

    #[test]
    fn quantiles_rise_whatever_the_weights_are() {
        tch::manual_seed(3);
        let params = ParamBuilder::new().build(0, Device::Cpu).unwrap();
        let cx = Cx::eval(&params);
        let levels = [0.02, 0.1, 0.5, 0.6, 0.9];
        for loss in [Loss::Quantile, Loss::Gaussian, Loss::StudentT] {
            let head = head(loss, &levels);
            for size in [0.1, 10.0, 1e3, 1e30] {
                let random = |shape: &[i64]| cx.input(Raw::randn(shape, (Kind::Float, Device::Cpu)) * size);
                let z = random(&[7, 5]);
                let all = {
                    let channels = head.channels_of(&cx, &random(&[7, head.channels(), 5])).unwrap();
                    head.quantiles(&cx, &z, Some(&channels)).unwrap()
                };
                assert_eq!(all.len(), levels.len());
                for pair in all.windows(2) {
                    assert!(bool::try_from(pair[0].raw().le_tensor(pair[1].raw()).all()).unwrap(), "{loss:?} {size}");
                }
                assert_eq!((all[2].raw() - z.raw()).abs().max().double_value(&[]), 0.0, "the median is the location");
            }
        }
    }

    #[test]
    fn the_start_has_the_spread_of_the_residuals() {
        let params = ParamBuilder::new().build(0, Device::Cpu).unwrap();
        let cx = Cx::eval(&params);
        for loss in [Loss::Quantile, Loss::Crps] {
            let head = head(loss, &[0.1, 0.5, 0.9]);
            for (spread, used) in [(0.5, 0.5), (7.0, 1.0), (0.0, 0.05)] {
                let start = head.start(spread);
                let channels = head.channels_of(&cx, &cx.input(Raw::from_slice(&start).reshape([1, -1, 1]))).unwrap();
                let z = cx.input(Raw::zeros([1, 1], (Kind::Double, Device::Cpu)));
                let all = head.quantiles(&cx, &z, Some(&channels)).unwrap();
                let highest = all[2].raw().double_value(&[0, 0]);
                assert!((highest - used * normal_quantile(0.9)).abs() < 1e-9, "{loss:?} {spread}: {highest}");
            }
        }
    }
}
