//! The loss scale of fp16: gradients below half's smallest number would vanish, so the backward pass starts from a large
//! number instead of 1, and the optimizer divides by it.
//!
//! A step whose gradients are not finite is refused and halves the scale; after enough good steps it doubles. Scale and
//! count stay on the device. Ranks agree without a word of their own: the flag comes from the norm of the summed
//! gradients, into which a number that is not finite on any rank carries over on every rank, and equal flags make equal
//! scales.

use tch::{Device, Kind, TchError, Tensor};

/// How the scale moves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaleSettings {
    /// Scale at the start.
    pub start: f64,
    /// Factor after `interval` good steps in a row.
    pub growth: f64,
    /// Factor after a bad step.
    pub backoff: f64,
    /// Good steps before the scale grows.
    pub interval: i64,
}

impl Default for ScaleSettings {
    fn default() -> Self {
        Self { start: 65536.0, growth: 2.0, backoff: 0.5, interval: 2000 }
    }
}

/// Scale and count of good steps, on the device.
#[derive(Debug)]
pub struct LossScale {
    /// How it moves.
    pub settings: ScaleSettings,
    scale: Tensor,
    good: Tensor,
}

impl LossScale {
    /// The scale at its start.
    ///
    /// # Errors
    /// What libtorch says, e.g. no memory.
    pub fn new(settings: ScaleSettings, device: Device) -> Result<Self, TchError> {
        let scale = Tensor::f_full([0i64; 0], settings.start, (Kind::Float, device))?;
        let good = Tensor::f_zeros([0i64; 0], (Kind::Int, device))?;
        Ok(Self { settings, scale, good })
    }

    /// What the backward pass starts from: f32, 0 axes.
    pub fn scale(&self) -> &Tensor {
        &self.scale
    }

    /// Good steps since the scale last moved: i32, 0 axes.
    pub fn good(&self) -> &Tensor {
        &self.good
    }

    /// By name, for checkpoints; written in place when one is loaded.
    pub fn named(&self) -> [(&'static str, &Tensor); 2] {
        [("scale", &self.scale), ("good", &self.good)]
    }
}
