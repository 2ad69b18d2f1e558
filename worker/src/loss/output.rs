//! What one forward pass gives.

use crate::autograd::Tensor;

/// Outputs in standardised target space, all f32; logits where the cells are classes.
#[derive(Clone)]
pub struct Output {
    /// The prediction z = base + gate · (refined − base), (B, O).
    pub z: Tensor,
    /// The base head alone, (B, O).
    pub base: Tensor,
    /// Base plus the whole refinement, (B, O).
    pub refined: Tensor,
    /// Trust in the refinement, (B, 1), or (B, G) with one per patch; ones (B, 1) when the gate is off.
    pub gate: Tensor,
    /// What is said of the distribution; `None` when only locations are predicted.
    pub channels: Option<Channels>,
}

/// Gaps or scales, not negative; see [`super::Head`].
#[derive(Clone)]
pub struct Channels {
    /// Of the prediction: base plus the whole refinement, (B, P, O). The gate weighs locations only: a scale describes the error
    /// that is left, however it came about.
    pub whole: Tensor,
    /// Of the base head alone, (B, P, O).
    pub base: Tensor,
}
