//! Standardisation of inputs and targets, in double precision.
//!
//! **Invariant:** the mean is subtracted in f64 before anything is rounded to f32, so that an offset of 1e8 does not swallow
//! the signal; nothing here is trained.

use enn_common::staged::meta::Stats;
use enn_core::autograd::{Cx, Tensor};
use enn_core::backend::duplicate;
use enn_core::error::OpError;
use enn_core::functional;
use tch::{Device, Kind, TchError, Tensor as Raw};

/// Lower bound of the frequency of a class, as a share of the rows.
const RATE_MIN: f64 = 1e-4;

/// The two buffers that convert the outputs of heads from another model's standardisation to that of the targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rebase {
    /// Factor of the outputs.
    Scale,
    /// Offset of the outputs.
    Shift,
}

impl Rebase {
    /// Both buffers with their names.
    pub const NAMED: [(&'static str, Self); 2] = [("z_scale", Self::Scale), ("z_shift", Self::Shift)];
}

/// Means and standard deviations of the F inputs and the O target cells, all f64.
///
/// A column without spread (constant, or without a valid training cell) has std 1 on input. On output a target cell
/// without spread is its mean, whatever was predicted.
#[derive(Debug)]
pub struct Scaler {
    x_mean: Raw,
    x_std: Raw,
    y_mean: Raw,
    y_std: Raw,
    y_min: Raw,
    y_max: Raw,
    /// Scale and shift (O) of a model whose heads are in another model's standard deviations.
    rebase: Option<[Raw; 2]>,
    /// `y_std`, but 0 for a cell that has one value in all training rows; derived from the buffers.
    y_spread: Raw,
}

impl Scaler {
    /// Creates a scaler from the statistics of the training rows, on the CPU.
    pub fn from_stats(x: &[Stats], y: &[Stats]) -> Self {
        let column =
            |stats: &[Stats], of: fn(&Stats) -> f64| Raw::from_slice(&stats.iter().map(of).collect::<Vec<_>>());
        Self {
            x_mean: column(x, mean_of),
            x_std: column(x, std_of),
            y_mean: column(y, mean_of),
            y_std: column(y, std_of),
            y_min: column(y, |s| s.min),
            y_max: column(y, |s| s.max),
            rebase: None,
            y_spread: column(y, |s| if s.max > s.min { std_of(s) } else { 0.0 }),
        }
    }

    /// Sets one of the buffers (O) f64 that convert head outputs to the standardisation of the targets, z·scale +
    /// shift, to a copy of `by`. The other one keeps its value; its default changes nothing.
    pub fn rebase(&mut self, place: Rebase, by: &Raw) -> Result<(), TchError> {
        let by = duplicate(&by.f_to_device(self.y_mean.device())?.f_to_kind(Kind::Double)?)?;
        let [scale, shift] = match self.rebase.take() {
            Some(both) => both,
            None => [by.f_ones_like()?, by.f_zeros_like()?],
        };
        self.rebase = Some(match place {
            Rebase::Scale => [by, shift],
            Rebase::Shift => [scale, by],
        });
        Ok(())
    }

    /// Returns scale and shift (O) f32 of the head outputs; `None` where heads are in the standardisation of the
    /// targets.
    pub fn rebased(&self, cx: &Cx) -> Result<Option<[Tensor; 2]>, OpError> {
        let single = |raw: &Raw| functional::cast(cx, &cx.constant(raw.shallow_clone()), Kind::Float);
        self.rebase.as_ref().map(|[scale, shift]| Ok([single(scale)?, single(shift)?])).transpose()
    }

    /// Returns the logarithms (O) of the mean targets, for cells that are 1 in the rows of a class and 0 elsewhere.
    pub fn log_rates(&self) -> Result<Raw, TchError> {
        self.y_mean.f_clamp(RATE_MIN, 1.0)?.f_log()
    }

    pub fn to_device(&mut self, device: Device) {
        for (_, buffer) in self.named_mut() {
            *buffer = buffer.to_device(device);
        }
        for buffer in self.rebase.iter_mut().flatten() {
            *buffer = buffer.to_device(device);
        }
        self.y_spread = self.y_spread.to_device(device);
    }

    /// Recomputes what follows from the buffers, after values were copied into [`Scaler::named_mut`].
    pub fn settle(&mut self) -> Result<(), TchError> {
        self.y_spread = self.y_std.f_mul(&self.y_max.f_gt_tensor(&self.y_min)?.f_to_kind(Kind::Double)?)?;
        Ok(())
    }

    /// Returns the buffers by name, for checkpoints: `x_mean`, `x_std` (F); `y_mean`, `y_std`, `y_min`, `y_max` (O),
    /// and where they are set `z_scale`, `z_shift` (O); all f64.
    pub fn named(&self) -> Vec<(&'static str, &Raw)> {
        let rebase = self.rebase.iter().flat_map(|both| Rebase::NAMED.map(|(name, _)| name).into_iter().zip(both));
        let always = [
            ("x_mean", &self.x_mean),
            ("x_std", &self.x_std),
            ("y_mean", &self.y_mean),
            ("y_std", &self.y_std),
            ("y_min", &self.y_min),
            ("y_max", &self.y_max),
        ];
        always.into_iter().chain(rebase).collect()
    }

    /// Returns the buffers that every scaler has, by name; a checkpoint is loaded into them by `copy_`.
    pub fn named_mut(&mut self) -> [(&'static str, &mut Raw); 6] {
        [
            ("x_mean", &mut self.x_mean),
            ("x_std", &mut self.x_std),
            ("y_mean", &mut self.y_mean),
            ("y_std", &mut self.y_std),
            ("y_min", &mut self.y_min),
            ("y_max", &mut self.y_max),
        ]
    }

    /// Standardises inputs in the user's units (B, F) to f32; NaN stays NaN.
    pub fn norm_x(&self, cx: &Cx, x: &Tensor) -> Result<Tensor, OpError> {
        standardise(cx, x, &self.x_mean, &self.x_std)
    }

    /// Standardises targets in the user's units (B, O) to f32; NaN stays NaN.
    pub fn norm_y(&self, cx: &Cx, y: &Tensor) -> Result<Tensor, OpError> {
        standardise(cx, y, &self.y_mean, &self.y_std)
    }

    /// Converts standardised outputs (B, O) to f64 in the user's units.
    pub fn denorm(&self, cx: &Cx, z: &Tensor) -> Result<Tensor, OpError> {
        let buffer = |raw: &Raw| cx.constant(raw.shallow_clone());
        let wide = functional::cast(cx, z, Kind::Double)?;
        let spread = functional::mul(cx, &wide, &buffer(&self.y_spread))?;
        functional::add(cx, &spread, &buffer(&self.y_mean))
    }
}

fn standardise(cx: &Cx, v: &Tensor, mean: &Raw, std: &Raw) -> Result<Tensor, OpError> {
    let buffer = |raw: &Raw| cx.constant(raw.shallow_clone());
    let wide = functional::cast(cx, v, Kind::Double)?;
    let centred = functional::sub(cx, &wide, &buffer(mean))?;
    functional::cast(cx, &functional::div(cx, &centred, &buffer(std))?, Kind::Float)
}

fn mean_of(stats: &Stats) -> f64 {
    if stats.n > 0 && stats.mean.is_finite() { stats.mean } else { 0.0 }
}

fn std_of(stats: &Stats) -> f64 {
    if stats.n > 0 && stats.std.is_finite() && stats.std > 0.0 { stats.std } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(values: &[f64]) -> Stats {
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let std = (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n).sqrt();
        let (min, max) = values.iter().fold((f64::MAX, f64::MIN), |(lo, hi), v| (lo.min(*v), hi.max(*v)));
        Stats { n: values.len() as u64, mean, std, min, max }
    }

    fn none() -> enn_core::params::Params {
        enn_core::params::ParamBuilder::new().build(0, Device::Cpu).unwrap()
    }

    fn empty() -> Stats {
        Stats { n: 0, mean: f64::NAN, std: f64::NAN, min: f64::NAN, max: f64::NAN }
    }

    #[test]
    fn large_offset_keeps_its_noise() {
        let none = none();
        let cx = Cx::eval(&none);
        // In f32 the noise on 1e8 would be rounded to multiples of 8, so the subtraction must precede the rounding.
        let values: Vec<f64> = (0..100).map(|i| 1e8 + f64::from(i % 7) - 3.0).collect();
        let scaler = Scaler::from_stats(&[stats(&values)], &[stats(&values)]);
        let y = Raw::from_slice(&values).reshape([100, 1]);
        let z = scaler.norm_y(&cx, &cx.input(y.shallow_clone())).unwrap();
        assert_eq!(z.kind(), Kind::Float);
        assert!((z.raw().std(false).double_value(&[]) - 1.0).abs() < 1e-5);
        let back = scaler.denorm(&cx, &z).unwrap();
        assert!((back.raw() - y).abs().max().double_value(&[]) < 1e-6);
    }

    #[test]
    fn columns_without_spread_pass_through_shifted() {
        let scaler = Scaler::from_stats(&[stats(&[5.0, 5.0]), empty()], &[stats(&[7.0, 7.0])]);
        let none = none();
        let cx = Cx::eval(&none);
        let row = |values: &[f32]| cx.input(Raw::from_slice(values).reshape([1, -1]));
        let z = scaler.norm_x(&cx, &row(&[6.0, 2.0])).unwrap();
        assert_eq!(Vec::<f32>::try_from(z.raw().reshape([-1])).unwrap(), [1.0, 2.0]);
        for predicted in [0.0, 0.5] {
            let y = scaler.denorm(&cx, &row(&[predicted])).unwrap();
            assert_eq!(y.raw().double_value(&[0, 0]), 7.0, "a constant is told as it is");
        }
    }

    #[test]
    fn buffers_of_a_checkpoint_bring_their_spread() {
        let none = none();
        let cx = Cx::eval(&none);
        let mut own = Scaler::from_stats(&[], &[empty()]);
        let saved = Scaler::from_stats(&[], &[stats(&[1.0, 3.0])]);
        for ((_, buffer), (_, value)) in own.named_mut().into_iter().zip(saved.named()) {
            buffer.copy_(value);
        }
        own.settle().unwrap();
        let z = cx.input(Raw::from_slice(&[1.0f32]).reshape([1, 1]));
        assert_eq!(own.denorm(&cx, &z).unwrap().raw().double_value(&[0, 0]), 3.0);
    }

    #[test]
    fn missing_stays_missing() {
        let scaler = Scaler::from_stats(&[stats(&[1.0, 3.0])], &[]);
        let none = none();
        let cx = Cx::eval(&none);
        let z = scaler.norm_x(&cx, &cx.input(Raw::from_slice(&[f32::NAN, 1.0]).reshape([2, 1]))).unwrap();
        assert!(z.raw().double_value(&[0, 0]).is_nan());
        assert_eq!(z.raw().double_value(&[1, 0]), -1.0);
    }

    #[test]
    fn wrong_width_is_an_error() {
        let scaler = Scaler::from_stats(&[stats(&[1.0, 3.0]), stats(&[1.0, 3.0])], &[]);
        let none = none();
        let cx = Cx::eval(&none);
        assert!(scaler.norm_x(&cx, &cx.input(Raw::zeros([4, 3], (Kind::Float, Device::Cpu)))).is_err());
    }
}
