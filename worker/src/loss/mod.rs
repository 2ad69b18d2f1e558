//! The objective: an element-wise loss in standardised target space, over valid cells only.
//!
//! **Invariant:** a missing label poisons nothing: its cell adds neither to the sum nor to the count, and its gradient is zero.
//! Adding a constant to every prediction of a perfect fit raises every loss offered here.

use crate::{
    autograd::{Cx, Tensor},
    error::OpError,
    functional,
    layer::error::refused,
    model::{Output, Targets},
};
use enn_common::config::train::{Loss, TrainConfig};
use tch::{Kind, Tensor as Raw};

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
    pub count: Raw,
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
        let count = targets.valid.f_sum(Kind::Double).map_err(refused("count"))?;
        Ok(BatchLoss { sum, count })
    }

    fn element(&self, cx: &Cx, prediction: &Tensor, targets: &Targets) -> Result<Tensor, OpError> {
        match self.loss {
            Loss::Mse => functional::masked_mse(cx, prediction, &targets.z, &targets.valid),
            Loss::Huber => functional::masked_huber(cx, prediction, &targets.z, &targets.valid, self.huber_delta),
        }
    }
}
