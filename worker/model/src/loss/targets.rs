//! The targets of a batch in the form that the loss reads.

use enn_core::autograd::Tensor;

/// Targets of a batch, ready for the loss.
#[derive(Debug, Clone)]
pub struct Targets {
    /// Standardised targets (B, O) f32, NaN where missing; for classes 1 in the cell of the class and 0 elsewhere.
    pub z: Tensor,
    /// Valid cells (B, O) bool.
    pub valid: Tensor,
    /// Weights of the rows (B, 1) or of their cells (B, O), f32; `None` when all count the same.
    pub weight: Option<Tensor>,
}
