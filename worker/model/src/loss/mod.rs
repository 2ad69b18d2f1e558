//! The objective: an element-wise loss in standardised target space, over valid cells only.
//!
//! | `train.loss` | per valid cell, with d = z − target, ω = d/σ |
//! |---|---|
//! | `mse` | d² |
//! | `huber` | d²/2 for \|d\| ≤ δ, else δ(\|d\| − δ/2) |
//! | `quantile` | mean over the levels τ of max(τe, (τ − 1)e), e = target − q_τ |
//! | `gaussian` | ω²/2 + ln σ; left out: ln √(2π) |
//! | `student_t` | (ν+1)/2 · ln(1 + ω²/ν) + ln σ; left out: ln(√(νπ) Γ(ν/2)/Γ((ν+1)/2)) |
//! | `crps` | σ(ω(2Φ(ω) − 1) + 2φ(ω) − 1/√π) |
//! | `cross_entropy` | per row: −ln softmax(logits) at the target's class |
//!
//! **Invariant:** a missing label has no effect: its cell adds neither to the sum nor to the count, and its gradient is
//! zero. Adding a constant to every prediction of a perfect fit raises every loss except `cross_entropy`, whose softmax
//! is invariant to constants. Weights multiply a cell's loss and its share of the count, so that a weight of 2 equals
//! the row twice.

mod element;
mod head;
mod output;
mod targets;
mod tiled;

pub use head::Head;
pub use output::{Channels, Output};
pub use targets::Targets;

use element::Cells;
use enn_common::config::train::{Loss, TrainConfig};
use enn_core::{
    autograd::{Cx, Tensor},
    error::{OpError, OpErrorKind},
    functional,
};
use tch::{Device, Kind, TchError, Tensor as Raw};

/// Approximate number of values (rows × cells) in a tile: 4 MiB of f32.
const TILE: i64 = 1 << 20;

/// Objective that training minimises: Σ ℓ(z) + λ Σ ℓ(base), over the valid cells.
#[derive(Debug)]
pub struct Objective {
    loss: Loss,
    huber_delta: f64,
    degrees_of_freedom: f64,
    base_weight: f64,
    levels: Vec<f64>,
    head: Head,
    /// Weights of the cells (O) f32.
    cells: Option<Raw>,
    /// Approximate number of values in a tile of a large output.
    tile: i64,
}

/// Sums of one batch. The mean over the global batch is Σ sum / Σ count.
pub struct BatchLoss {
    /// Sum over the valid cells, scalar f32; `backward` starts here.
    pub sum: Tensor,
    /// Weighted number of valid cells (rows, for classes), scalar f64 on the device.
    pub count: Tensor,
}

impl Objective {
    /// Creates the objective of `[train]`; all cells have the same weight.
    pub fn new(config: &TrainConfig) -> Self {
        Self {
            loss: config.loss,
            huber_delta: config.huber_delta,
            degrees_of_freedom: config.degrees_of_freedom,
            base_weight: config.base_loss_weight,
            levels: config.levels.clone(),
            head: Head::new(config),
            cells: None,
            tile: TILE,
        }
    }

    pub fn weighted(self, cells: Option<&[f64]>, device: Device) -> Result<Self, TchError> {
        let on_device = |weights: &[f64]| Raw::f_from_slice(weights)?.f_to_kind(Kind::Float)?.f_to_device(device);
        Ok(Self { cells: cells.map(on_device).transpose()?, ..self })
    }

    /// Returns the head whose numbers the loss reads.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Returns the share of the targets between the lowest and the highest quantile, if the head has quantiles.
    pub fn nominal(&self) -> Option<f64> {
        let has = matches!(self.head, Head::Quantiles { .. } | Head::Scale { .. });
        has.then(|| Some(self.levels.last()? - self.levels.first()?)).flatten()
    }

    /// Returns the index of the quantile that is the location; 0 without quantiles.
    pub fn middle(&self) -> usize {
        if self.nominal().is_some() { head::middle(&self.levels) } else { 0 }
    }

    /// Whether predictions are compared by the loss itself. Point predictions are compared by their mean absolute
    /// error.
    pub fn compares_by_loss(&self) -> bool {
        self.head != Head::Point
    }

    /// Computes sum and count over a batch.
    pub fn forward(&self, cx: &Cx, output: &Output, targets: &Targets) -> Result<BatchLoss, OpError> {
        let _scope = cx.scope("loss");
        self.evaluate(cx, output, targets, self.base_weight)
    }

    /// Computes sum and count over a batch without the base head's own loss: the quality of the prediction.
    pub fn score(&self, cx: &Cx, output: &Output, targets: &Targets) -> Result<BatchLoss, OpError> {
        self.evaluate(cx, output, targets, 0.0)
    }

    fn evaluate(&self, cx: &Cx, output: &Output, targets: &Targets, base_weight: f64) -> Result<BatchLoss, OpError> {
        let weight = self.weight(cx, targets)?;
        let channels = output.channels.as_ref();
        let mut sum = self.sum(cx, &output.z, channels.map(|c| &c.whole), targets, weight.as_ref())?;
        if base_weight > 0.0 {
            let base = self.sum(cx, &output.base, channels.map(|c| &c.base), targets, weight.as_ref())?;
            sum = functional::add(cx, &sum, &functional::scale(cx, &base, base_weight)?)?;
        }
        Ok(BatchLoss { sum, count: self.count(cx, targets, weight.as_ref())? })
    }

    /// Returns the weight of each valid cell (B, O), 0 where a cell is not valid; `None` when all valid cells have the
    /// same weight.
    pub fn weight(&self, cx: &Cx, targets: &Targets) -> Result<Option<Tensor>, OpError> {
        let rows = targets.weight.as_ref();
        let of_cells = self.cells.as_ref().map(|raw| cx.constant(raw.shallow_clone()));
        if rows.is_none() && of_cells.is_none() {
            return Ok(None);
        }
        let valid = functional::cast(cx, &targets.valid, targets.z.kind())?;
        let times = |all: Tensor, more: &Tensor| functional::mul(cx, &all, more);
        Ok(Some(rows.into_iter().chain(&of_cells).try_fold(valid, times)?))
    }

    fn count(&self, cx: &Cx, targets: &Targets, weight: Option<&Tensor>) -> Result<Tensor, OpError> {
        let counted = weight.unwrap_or(&targets.valid);
        let cells = functional::sum_all(cx, &functional::cast(cx, counted, Kind::Double)?)?;
        match self.head {
            Head::Classes => functional::scale(cx, &cells, 1.0 / targets.z.dim(-1).max(1) as f64),
            _ => Ok(cells),
        }
    }

    fn element(
        &self,
        cx: &Cx,
        z: &Tensor,
        channels: Option<&Tensor>,
        targets: &Targets,
        weight: Option<&Tensor>,
    ) -> Result<Tensor, OpError> {
        match (self.loss, weight) {
            (Loss::Mse, None) => return functional::masked_mse(cx, z, &targets.z, &targets.valid),
            (Loss::Huber, None) => {
                return functional::masked_huber(cx, z, &targets.z, &targets.valid, self.huber_delta);
            }
            _ => {}
        }
        let cells = Cells::new(cx, targets, weight)?;
        let losses = match (self.loss, channels) {
            (Loss::Huber, _) => cells.huber(z, self.huber_delta)?,
            (Loss::CrossEntropy, _) => cells.cross_entropy(z)?,
            (Loss::Quantile, None) if self.head == Head::Point => {
                cells.pinball(std::slice::from_ref(z), &self.levels)?
            }
            (Loss::Quantile, Some(_)) => cells.pinball(&self.head.quantiles(cx, z, channels)?, &self.levels)?,
            (Loss::Gaussian, Some(channels)) => cells.gaussian(z, &head::scale(cx, channels)?)?,
            (Loss::Crps, Some(channels)) => cells.crps(z, &head::scale(cx, channels)?)?,
            (Loss::StudentT, Some(channels)) => {
                cells.students_t(z, &head::scale(cx, channels)?, self.degrees_of_freedom)?
            }
            (Loss::Mse, _) => cells.squared(z)?,
            (Loss::Quantile | Loss::Gaussian | Loss::Crps | Loss::StudentT, None) => {
                let expected = "those of the loss; build the model with its head";
                let kind = OpErrorKind::Attribute { name: "number of channels per cell", found: 0.0, expected };
                return Err(cx.fail("loss", kind));
            }
        };
        cells.sum(&losses)
    }
}

#[cfg(test)]
mod tests;
