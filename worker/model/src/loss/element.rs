//! Losses of single cells, composed of differentiable operations.
//!
//! **Invariant:** exponentials are taken of negative squares only, and logarithms of at least the minimum scale: what
//! is finite stays finite up to the square of the error.

use super::targets::Targets;
use enn_core::{
    autograd::{Cx, Tensor},
    error::OpError,
    functional,
};
use std::f64::consts::{FRAC_2_PI, PI};

type Losses = Result<Tensor, OpError>;

/// Targets in the form that the losses read: finite everywhere, with weight 0 where a cell is not valid.
pub(super) struct Cells<'a, 'p> {
    cx: &'a Cx<'p>,
    /// Targets (B, O), 0 where missing.
    target: Tensor,
    /// Weights (B, O).
    weight: Tensor,
}

impl<'a, 'p> Cells<'a, 'p> {
    pub(super) fn new(cx: &'a Cx<'p>, targets: &Targets, weight: Option<&Tensor>) -> Result<Self, OpError> {
        let target = functional::zero_where_not(cx, &targets.z, &targets.valid)?;
        let weight = weight.cloned().map_or_else(|| functional::cast(cx, &targets.valid, target.kind()), Ok)?;
        Ok(Self { cx, target, weight })
    }

    /// Returns Σ of losses (B, O) by weight.
    pub(super) fn sum(&self, losses: &Tensor) -> Losses {
        functional::sum_all(self.cx, &functional::mul(self.cx, losses, &self.weight)?)
    }

    pub(super) fn squared(&self, z: &Tensor) -> Losses {
        functional::square(self.cx, &functional::sub(self.cx, z, &self.target)?)
    }

    pub(super) fn huber(&self, z: &Tensor, delta: f64) -> Losses {
        let size = functional::abs(self.cx, &functional::sub(self.cx, z, &self.target)?)?;
        let near = functional::clamp(self.cx, &size, 0.0, delta)?;
        // near·(size − near/2) is size²/2 below delta and delta·(size − delta/2) above.
        let rest = functional::sub(self.cx, &size, &functional::scale(self.cx, &near, 0.5)?)?;
        functional::mul(self.cx, &near, &rest)
    }

    pub(super) fn pinball(&self, quantiles: &[Tensor], levels: &[f64]) -> Losses {
        let cx = self.cx;
        let of_level = |(quantile, level): (&Tensor, &f64)| {
            let error = functional::sub(cx, &self.target, quantile)?;
            // max(τe, (τ − 1)e) = τe + max(−e, 0).
            let over = functional::relu(cx, &functional::neg(cx, &error)?)?;
            functional::add(cx, &functional::scale(cx, &error, *level)?, &over)
        };
        let all: Vec<Tensor> = quantiles.iter().zip(levels).map(of_level).collect::<Result<_, _>>()?;
        functional::mean(cx, &functional::stack(cx, &all.iter().collect::<Vec<_>>(), 0)?, &[0], false)
    }

    pub(super) fn gaussian(&self, z: &Tensor, scale: &Tensor) -> Losses {
        let square = functional::square(self.cx, &self.standard(z, scale)?)?;
        let density = functional::scale(self.cx, &square, 0.5)?;
        functional::add(self.cx, &density, &functional::log(self.cx, scale)?)
    }

    pub(super) fn students_t(&self, z: &Tensor, scale: &Tensor, freedom: f64) -> Losses {
        let cx = self.cx;
        let square = functional::scale(cx, &functional::square(cx, &self.standard(z, scale)?)?, 1.0 / freedom)?;
        let tail = functional::log(cx, &functional::add_scalar(cx, &square, 1.0)?)?;
        let density = functional::scale(cx, &tail, f64::midpoint(freedom, 1.0))?;
        functional::add(cx, &density, &functional::log(cx, scale)?)
    }

    pub(super) fn crps(&self, z: &Tensor, scale: &Tensor) -> Losses {
        let cx = self.cx;
        let omega = self.standard(z, scale)?;
        // ω(2Φ(ω) − 1), as ωΦ(ω) is GELU.
        let gelu = functional::scale(cx, &functional::gelu(cx, &omega, false)?, 2.0)?;
        let centre = functional::sub(cx, &gelu, &omega)?;
        let bell = functional::exp(cx, &functional::scale(cx, &functional::square(cx, &omega)?, -0.5)?)?;
        // 2φ(ω) = √(2/π) e^(−ω²/2).
        let both = functional::add(cx, &centre, &functional::scale(cx, &bell, FRAC_2_PI.sqrt())?)?;
        functional::mul(cx, scale, &functional::add_scalar(cx, &both, -1.0 / PI.sqrt())?)
    }

    /// Maps logits to −y ln softmax, whose sum over the classes is the loss of a row.
    pub(super) fn cross_entropy(&self, logits: &Tensor) -> Losses {
        let log = functional::log_softmax(self.cx, logits, -1)?;
        functional::neg(self.cx, &functional::mul(self.cx, &log, &self.target)?)
    }

    /// Returns ω = (z − target)/σ.
    fn standard(&self, z: &Tensor, scale: &Tensor) -> Losses {
        functional::div(self.cx, &functional::sub(self.cx, z, &self.target)?, scale)
    }
}
