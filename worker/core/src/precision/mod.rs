//! Numeric precision: which operations run in a low-precision kind, the choice of a training's format, and the means that
//! keep it stable: a loss scale for fp16, a cool-down in f32 after trouble, scaled 8-bit products.
//!
//! An [`Autocast`] is the policy; the casts themselves are recorded operations (`autograd::cast`). Masters,
//! moments, averages, statistics, heads and losses are f32 in every format.
//!
//! **Invariant:** every decision follows from metas, the configuration, the device and the data's staged range, or from
//! step numbers that all ranks share; nothing here reads a tensor of the training.

mod autocast;
mod cooldown;
mod decide;
pub mod fp8;
mod loss_scale;
mod policy;
mod support;

pub use crate::backend::torch::safe::allow_tf32;
pub use crate::op::row::Class;
pub use autocast::{Autocast, FP8_SIDE_MIN, Fp8};
pub use cooldown::{COOLDOWN_STEPS, Cooldown};
pub use decide::{Format, FormatChoice, MARGIN, Reason, Support, choose, largest_standardised};
pub use loss_scale::{LossScale, ScaleSettings};
pub use policy::{castable, target};
pub use support::support;
