//! What one forward pass gives.

use crate::autograd::Tensor;

/// Outputs in standardised target space, all f32.
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
}
