//! Result of a forward pass.

use enn_core::autograd::Tensor;

/// Outputs in standardised target space, all f32; logits where the cells are classes.
#[derive(Clone)]
pub struct Output {
    /// Prediction z = base + gate · (refined − base), (B, O).
    pub z: Tensor,
    /// Output of the base head alone, (B, O).
    pub base: Tensor,
    /// Base plus the whole refinement, (B, O).
    pub refined: Tensor,
    /// Weight of the refinement, (B, 1), or (B, G) with one per patch; ones (B, 1) when the gate is off.
    pub gate: Tensor,
    /// Parameters of the predicted distribution; `None` when only locations are predicted.
    pub channels: Option<Channels>,
}

/// Gaps or scales, not negative; see [`super::Head`].
#[derive(Clone)]
pub struct Channels {
    /// Channels of the prediction: base plus the whole refinement, (B, P, O). The gate applies to locations only: a
    /// scale describes the remaining error, whatever its cause.
    pub whole: Tensor,
    /// Channels of the base head alone, (B, P, O).
    pub base: Tensor,
}
