//! The loss scale of fp16: gradients below half's smallest number would vanish, so the backward pass starts from a large
//! number instead of 1, and the optimizer divides by it.
//!
//! A step whose gradients are not finite is refused and halves the scale; after enough good steps it doubles. Scale and
//! count stay on the device. Ranks agree without communication of their own: the flag comes from the norm of the summed
//! gradients, so a value that is not finite on one rank shows on every rank, and equal flags make equal
//! scales.

use crate::op::low_precision::scale_update::SCALE_MIN;
use tch::{Device, Kind, TchError, Tensor};

/// Settings of the dynamic loss scale.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaleSettings {
    pub start: f64,
    /// Factor after `interval` good steps in a row.
    pub growth: f64,
    pub backoff: f64,
    /// Good steps before the scale grows.
    pub interval: i64,
}

/// Largest initial scale, which a mean loss starts with.
const START_MAX: f64 = 65536.0;

impl ScaleSettings {
    /// Returns settings for a loss that is a sum over `cells`. Its gradients are larger than a mean's by about that factor, so the scale
    /// starts smaller. The scale is a power of two, which changes no mantissa.
    pub fn for_sum_of(cells: u64) -> Self {
        let start = (START_MAX / cells.max(1) as f64).log2().floor().exp2();
        Self { start: start.max(SCALE_MIN), ..Self::default() }
    }
}

impl Default for ScaleSettings {
    fn default() -> Self {
        Self { start: START_MAX, growth: 2.0, backoff: 0.5, interval: 2000 }
    }
}

/// Scale and count of good steps, on the device.
#[derive(Debug)]
pub struct LossScale {
    pub settings: ScaleSettings,
    scale: Tensor,
    good: Tensor,
}

impl LossScale {
    pub fn new(settings: ScaleSettings, device: Device) -> Result<Self, TchError> {
        let scale = Tensor::f_full([0i64; 0], settings.start, (Kind::Float, device))?;
        let good = Tensor::f_zeros([0i64; 0], (Kind::Int, device))?;
        Ok(Self { settings, scale, good })
    }

    /// Factor that the backward pass starts from: f32, 0 axes.
    pub fn scale(&self) -> &Tensor {
        &self.scale
    }

    /// Number of good steps since the scale last changed: i32, 0 axes.
    pub fn good(&self) -> &Tensor {
        &self.good
    }

    /// Returns the state by name, for checkpoints.
    pub fn named(&self) -> [(&'static str, &Tensor); 2] {
        [("loss_scale", &self.scale), ("good_steps", &self.good)]
    }

    /// Copies the values that `saved` has for the names of [`LossScale::named`] into the state.
    ///
    /// # Errors
    /// When a value is not a single number.
    pub fn restore<'a>(&self, saved: impl Fn(&str) -> Option<&'a Tensor>) -> Result<(), TchError> {
        for (name, own) in self.named() {
            if let Some(value) = saved(name) {
                tch::no_grad(|| own.shallow_clone().f_copy_(value))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_over_many_cells_starts_with_a_small_power_of_two() {
        let start = |cells| ScaleSettings::for_sum_of(cells).start;
        assert_eq!((start(0), start(1), start(72), start(65536)), (65536.0, 65536.0, 512.0, 1.0));
        assert_eq!((start(1 << 20), start(u64::MAX)), (1.0 / 16.0, SCALE_MIN));
    }
}
