//! Optimizer updates as operations: no gradient, written in place, every number on the device.
//!
//! **Invariant:** nothing here reads a number from a device. On the CPU a refused step is seen at once and costs nothing.

pub mod adamw;
pub mod average;
mod fits;
pub mod global_norm;
pub mod step_scalars;
pub mod zero;

use super::prelude::*;

/// Numbers of the first result of [`StepScalars`](super::StepScalars), by position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scalar {
    /// Multiplies the summed gradient: 1/count, clip; 0 when the step is refused.
    Gradient,
    /// 1 − β₁, or 0 when the step is refused.
    First,
    /// 1 − β₂, or 0.
    Second,
    /// 1 − lr·wd, or 1 when the step is refused.
    Shrink,
    /// −lr/(1 − β₁ᵗ), or 0.
    Update,
    /// 1/√(1 − β₂ᵗ).
    Spread,
}

pub const SCALARS: i64 = 6;

/// The answer to an export of an optimizer's operation.
const fn not_exported<A>() -> Export<A> {
    Export::no(
        "the optimizer is not part of the model",
        "parameters as they are: what changes them is the optimizer's, after the forward pass",
    )
}
