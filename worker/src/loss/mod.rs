//! The objective: an element-wise loss in standardised target space, over valid cells only.
//!
//! **Invariant:** a missing label poisons nothing: its cell adds neither to the sum nor to the count, and its gradient is zero.
//! Adding a constant to every prediction of a perfect fit raises every loss offered here.

mod output;

pub use output::Output;

use crate::{
    autograd::{Cx, Tensor},
    error::OpError,
    functional,
};
use enn_common::config::train::{Loss, TrainConfig};
use tch::Kind;

/// Targets of a batch, ready for the loss.
#[derive(Debug, Clone)]
pub struct Targets {
    /// Standardised targets (B, O) f32; NaN where missing.
    pub z: Tensor,
    /// Valid cells (B, O) bool.
    pub valid: Tensor,
}

/// What is minimised: Σ ℓ(z) + λ Σ ℓ(base), over the valid cells.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Objective {
    /// ℓ.
    pub loss: Loss,
    /// Huber's transition, in target standard deviations.
    pub huber_delta: f64,
    /// λ, the weight of the base head's own loss; 0 leaves it out.
    pub base_weight: f64,
}

/// A batch's share of the objective. The mean over the global batch is Σ sum / Σ count.
pub struct BatchLoss {
    /// Sum over the valid cells, scalar f32; `backward` starts here.
    pub sum: Tensor,
    /// Valid cells, scalar f64 on the device.
    pub count: Tensor,
}

impl Objective {
    /// From `[train]`.
    pub fn new(config: &TrainConfig) -> Self {
        Self { loss: config.loss, huber_delta: config.huber_delta, base_weight: config.base_loss_weight }
    }

    /// Sum and count over a batch.
    ///
    /// # Errors
    /// When predictions and targets differ in shape.
    pub fn forward(&self, cx: &Cx, output: &Output, targets: &Targets) -> Result<BatchLoss, OpError> {
        let _scope = cx.scope("loss");
        let mut sum = self.element(cx, &output.z, targets)?;
        if self.base_weight > 0.0 {
            let base = self.element(cx, &output.base, targets)?;
            sum = functional::add(cx, &sum, &functional::scale(cx, &base, self.base_weight)?)?;
        }
        let count = functional::sum_all(cx, &functional::cast(cx, &targets.valid, Kind::Double)?)?;
        Ok(BatchLoss { sum, count })
    }

    fn element(&self, cx: &Cx, prediction: &Tensor, targets: &Targets) -> Result<Tensor, OpError> {
        match self.loss {
            Loss::Mse => functional::masked_mse(cx, prediction, &targets.z, &targets.valid),
            Loss::Huber => functional::masked_huber(cx, prediction, &targets.z, &targets.valid, self.huber_delta),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::ParamBuilder;
    use tch::{Device, Tensor as Raw};

    fn objective(loss: Loss) -> Objective {
        Objective { loss, huber_delta: 0.5, base_weight: 0.25 }
    }

    /// Loss of predictions z and base against targets, all (2, 3).
    fn evaluate(objective: Objective, z: &Raw, base: &Raw, target: &Raw) -> (f64, f64) {
        let params = ParamBuilder::new().build(0, Device::Cpu).unwrap();
        let cx = Cx::eval(&params);
        let tensor = |raw: &Raw| cx.input(raw.shallow_clone());
        let output = Output { z: tensor(z), base: tensor(base), refined: tensor(z), gate: tensor(z) };
        let targets = Targets { valid: tensor(&target.isfinite()), z: tensor(target) };
        let loss = objective.forward(&cx, &output, &targets).unwrap();
        (loss.sum.raw().double_value(&[]), loss.count.raw().double_value(&[]))
    }

    fn targets() -> Raw {
        Raw::from_slice(&[0.5_f32, -1.0, f32::NAN, 2.0, 0.0, 1.0]).reshape([2, 3])
    }

    fn element(loss: Loss, error: f64) -> f64 {
        match loss {
            Loss::Mse => error * error,
            Loss::Huber if error.abs() <= 0.5 => 0.5 * error * error,
            Loss::Huber => 0.5 * (error.abs() - 0.25),
        }
    }

    #[test]
    fn sums_over_valid_cells_only() {
        for loss in [Loss::Mse, Loss::Huber] {
            let (z, base) =
                (Raw::zeros([2, 3], (Kind::Float, Device::Cpu)), Raw::ones([2, 3], (Kind::Float, Device::Cpu)));
            let valid = [0.5, -1.0, 2.0, 0.0, 1.0];
            let expected: f64 = valid.iter().map(|t| element(loss, *t) + 0.25 * element(loss, t - 1.0)).sum();
            let (sum, count) = evaluate(objective(loss), &z, &base, &targets());
            assert!((sum - expected).abs() < 1e-5, "{loss:?}: {sum} against {expected}");
            assert_eq!(count, 5.0);
        }
    }

    #[test]
    fn a_shift_of_all_predictions_raises_every_loss() {
        let targets = targets();
        let perfect = targets.nan_to_num(0.0, None, None);
        for loss in [Loss::Mse, Loss::Huber] {
            let at = |z: f64, base: f64| evaluate(objective(loss), &(&perfect + z), &(&perfect + base), &targets).0;
            assert_eq!(at(0.0, 0.0), 0.0);
            for shift in [-3.0, -0.1, 0.1, 3.0] {
                assert!(at(shift, shift) > at(shift / 2.0, shift / 2.0), "{loss:?} shift {shift}");
                assert!(at(shift, 0.0) > 0.0 && at(0.0, shift) > 0.0);
            }
        }
    }

    #[test]
    fn all_missing_is_zero_of_zero() {
        let targets = Raw::full([2, 3], f64::NAN, (Kind::Float, Device::Cpu));
        let one = Raw::ones([2, 3], (Kind::Float, Device::Cpu));
        assert_eq!(evaluate(objective(Loss::Huber), &one, &one, &targets), (0.0, 0.0));
    }
}
