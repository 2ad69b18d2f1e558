//! The residual connection shared by all blocks: x + DropPath(Dropout(f(x))). The addition is deferred to the norm that
//! reads the sum, so that both are one operation.

use crate::layer::Normalise;
use enn_core::{
    autograd::{Cx, Tensor},
    error::OpError,
    functional,
};

/// Dropout rates of the residual connections of one block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Regularise {
    /// Dropout probability of an element, 0..1.
    pub dropout: f64,
    /// Probability that a sample skips the branch, 0..1.
    pub drop_path: f64,
}

impl Regularise {
    /// Returns the rates of block `index` of `count`: stochastic depth grows linearly from 0 to its largest value.
    pub fn at_depth(self, index: usize, count: usize) -> Self {
        let ramp = if count > 1 { index as f64 / (count - 1) as f64 } else { 1.0 };
        Self { drop_path: self.drop_path * ramp, ..self }
    }

    /// Returns x + DropPath(Dropout(branch)), broadcasting when `x` has batch 1. Outside training the result is x +
    /// branch.
    ///
    /// # Errors
    /// When a rate is outside 0..1.
    pub fn add(&self, cx: &Cx, x: Tensor, branch: &Tensor) -> Result<Residual, OpError> {
        let branch = functional::dropout(cx, branch, self.dropout)?;
        Ok(Residual { x, branch: Some(functional::drop_path(cx, &branch, self.drop_path)?) })
    }
}

/// The residual stream with its last branch, which may not be added yet.
#[derive(Debug, Clone)]
pub struct Residual {
    x: Tensor,
    branch: Option<Tensor>,
}

impl From<Tensor> for Residual {
    fn from(x: Tensor) -> Self {
        Self { x, branch: None }
    }
}

impl Residual {
    /// Returns the stream with its last branch added.
    pub fn sum(&self, cx: &Cx) -> Result<Tensor, OpError> {
        match &self.branch {
            Some(branch) => functional::add(cx, &self.x, branch),
            None => Ok(self.x.clone()),
        }
    }

    /// Returns the stream and its norm, for the next branch.
    pub fn norm(&self, cx: &Cx, norm: &Normalise) -> Result<(Tensor, Tensor), OpError> {
        match &self.branch {
            Some(branch) => norm.add_forward(cx, &self.x, branch),
            None => Ok((self.x.clone(), norm.forward(cx, &self.x)?)),
        }
    }

    /// Returns the norm behind the last block, in the dtype of the stream: unlike a norm between blocks it may be read
    /// in full precision.
    pub fn last_norm(&self, cx: &Cx, norm: &Normalise) -> Result<Tensor, OpError> {
        norm.forward(cx, &self.sum(cx)?)
    }

    /// Prepares the stream for the border of a recomputed part of the step: with recomputation the sum is formed, so
    /// that one tensor is kept at the border and not two.
    pub fn at_border(self, cx: &Cx) -> Result<Self, OpError> {
        if cx.recomputes() { Ok(self.sum(cx)?.into()) } else { Ok(self) }
    }

    /// Returns the number of samples, or 1 where the stream broadcasts.
    pub fn batch(&self) -> i64 {
        self.x.dim(0)
    }

    /// Applies `shape` to the stream and to its branch.
    pub fn map(&self, shape: impl Fn(&Tensor) -> Result<Tensor, OpError>) -> Result<Self, OpError> {
        Ok(Self { x: shape(&self.x)?, branch: self.branch.as_ref().map(shape).transpose()? })
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
