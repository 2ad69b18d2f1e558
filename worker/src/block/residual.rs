//! The residual connection shared by all blocks: x + DropPath(Dropout(f(x))).

use crate::{
    autograd::{Cx, Tensor},
    error::OpError,
    functional,
    layer::Normalise,
};

/// Rates of one block's residual connections.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Regularise {
    /// Element dropout, 0..1.
    pub dropout: f64,
    /// Probability that a sample skips the branch, 0..1.
    pub drop_path: f64,
}

impl Regularise {
    /// Rates of block `index` of `count`: stochastic depth grows linearly from 0 to its largest value.
    pub fn at_depth(self, index: usize, count: usize) -> Self {
        let ramp = if count > 1 { index as f64 / (count - 1) as f64 } else { 1.0 };
        Self { drop_path: self.drop_path * ramp, ..self }
    }

    /// x + DropPath(Dropout(branch)), broadcasting when `x` has batch 1. Outside training x + branch.
    ///
    /// # Errors
    /// When the shapes do not broadcast.
    pub fn add(&self, cx: &Cx, x: &Tensor, branch: &Tensor) -> Result<Tensor, OpError> {
        functional::add(cx, x, &self.thin(cx, branch)?)
    }

    /// [`Regularise::add`], and the norm of it for the next branch.
    ///
    /// # Errors
    /// As [`Regularise::add`].
    pub fn add_norm(
        &self,
        cx: &Cx,
        x: &Tensor,
        branch: &Tensor,
        norm: &Normalise,
    ) -> Result<(Tensor, Tensor), OpError> {
        norm.add_forward(cx, x, &self.thin(cx, branch)?)
    }

    fn thin(&self, cx: &Cx, branch: &Tensor) -> Result<Tensor, OpError> {
        let branch = functional::dropout(cx, branch, self.dropout)?;
        functional::drop_path(cx, &branch, self.drop_path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stochastic_depth_ramps_to_its_largest_rate() {
        let largest = Regularise { dropout: 0.1, drop_path: 0.3 };
        let rates: Vec<f64> = (0..4).map(|i| largest.at_depth(i, 4).drop_path).collect();
        assert_eq!(rates[0], 0.0);
        assert!((rates[1] - 0.1).abs() < 1e-12 && (rates[2] - 0.2).abs() < 1e-12);
        assert_eq!(rates[3], 0.3);
        assert_eq!(largest.at_depth(0, 1).drop_path, 0.3);
        assert_eq!(largest.at_depth(0, 4).dropout, 0.1);
    }
}
