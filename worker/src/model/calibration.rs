//! What validation rows say about a trained model's answers: where a location is off, and how far quantiles must lie apart.
//!
//! ```text
//! z' = shift + slope·z per cell        q of the next level = q + stretch·(its distance in the model's own answer), stretch ≥ 0
//! ```
//! **Invariant:** quantiles stay in the order of their levels. No part of it is trained, and no training step looks at it.

use super::ModelError;
use crate::{
    autograd::{Cx, Tensor},
    error::OpError,
    functional,
};
use std::collections::BTreeMap;
use tch::{Device, Kind, TchError, Tensor as Raw};

/// Buffers, all f64; without any an answer is the model's own.
#[derive(Debug, Default)]
pub struct Calibration {
    /// a, b (O).
    affine: Option<[Raw; 2]>,
    /// (levels − 1, O).
    stretch: Option<Raw>,
}

impl Calibration {
    /// Beginning of the buffers' names.
    pub const PREFIX: &'static str = "calibration.";

    /// Of shift and slope by cell, and a factor for the distance of each two levels by cell.
    pub fn new(affine: Option<[Vec<f64>; 2]>, stretch: Option<&[Vec<f64>]>) -> Result<Self, TchError> {
        let affine =
            affine.map(|[shift, slope]| Ok::<_, TchError>([Raw::f_from_slice(&shift)?, Raw::f_from_slice(&slope)?]));
        let rows = |rows: &[Vec<f64>]| Raw::f_from_slice(&rows.concat())?.f_view([rows.len() as i64, -1]);
        Ok(Self { affine: affine.transpose()?, stretch: stretch.map(rows).transpose()? })
    }

    /// The buffers by name, for checkpoints.
    pub fn named(&self) -> Vec<(String, Raw)> {
        let affine = self.affine.iter().flat_map(|[shift, slope]| [("shift", shift), ("slope", slope)]);
        let all = affine.chain(self.stretch.iter().map(|stretch| ("stretch", stretch)));
        all.map(|(name, raw)| (format!("{}{name}", Self::PREFIX), raw.shallow_clone())).collect()
    }

    /// What a checkpoint holds of it under `prefix` and the names above, for `cells` output cells and so many `levels`.
    ///
    /// # Errors
    /// [`ModelError::Buffer`] for buffers of another model.
    pub fn restore(
        saved: &BTreeMap<String, Raw>,
        prefix: &str,
        (levels, cells): (i64, i64),
    ) -> Result<Self, ModelError> {
        let find = |name: &str, expected: &[i64]| {
            let name = format!("{}{name}", Self::PREFIX);
            let Some(found) = saved.get(&format!("{prefix}{name}")) else { return Ok(None) };
            if found.size() != expected {
                return Err(ModelError::Buffer { name, found: found.size(), expected: expected.to_vec() });
            }
            Ok(Some(found.f_to_kind(Kind::Double)?))
        };
        let affine = find("shift", &[cells])?.zip(find("slope", &[cells])?).map(|(shift, slope)| [shift, slope]);
        Ok(Self { affine, stretch: find("stretch", &[(levels - 1).max(0), cells])? })
    }

    /// Moves the buffers.
    pub fn to_device(&mut self, device: Device) {
        for buffer in self.affine.iter_mut().flatten().chain(&mut self.stretch) {
            *buffer = buffer.to_device(device);
        }
    }

    /// Standardised locations (B, O) → those to answer with.
    pub(super) fn location(&self, cx: &Cx, z: &Tensor) -> Result<Tensor, OpError> {
        let Some([shift, slope]) = &self.affine else { return Ok(z.clone()) };
        functional::add(cx, &functional::mul(cx, z, &constant(cx, slope)?)?, &constant(cx, shift)?)
    }

    /// Factors (levels − 1, O) of the distances between quantiles.
    pub(super) fn stretch(&self, cx: &Cx) -> Result<Option<Tensor>, OpError> {
        self.stretch.as_ref().map(|stretch| constant(cx, stretch)).transpose()
    }
}

/// A buffer in the precision of what it is applied to.
fn constant(cx: &Cx, buffer: &Raw) -> Result<Tensor, OpError> {
    functional::cast(cx, &cx.constant(buffer.shallow_clone()), Kind::Float)
}
