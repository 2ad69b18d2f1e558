//! Corrections of a trained model that are fitted to the validation rows: an affine map of locations, and factors for
//! the distances between quantiles.
//!
//! ```text
//! z' = shift + slope·z per cell        q of the next level = q + stretch·(its distance in the model's own answer), stretch ≥ 0
//! ```
//! **Invariant:** quantiles stay in the order of their levels. No part of it is trained, and no training step looks at it.

use super::ModelError;
use enn_core::{
    autograd::{Cx, Tensor},
    error::OpError,
    functional,
};
use std::collections::BTreeMap;
use tch::{Device, Kind, TchError, Tensor as Raw};

/// Buffers of the calibration, all f64. Without buffers the outputs are those of the model.
#[derive(Debug, Default)]
pub struct Calibration {
    /// Shift and slope of z, (O) each.
    affine: Option<[Raw; 2]>,
    /// Factors of the distances between quantiles, (levels − 1, O).
    stretch: Option<Raw>,
}

impl Calibration {
    /// Prefix of the buffers' names.
    pub const PREFIX: &'static str = "calibration.";

    /// Creates a calibration from shift and slope per cell, and a factor per cell for the distance of each two levels.
    pub fn new(affine: Option<[Vec<f64>; 2]>, stretch: Option<&[Vec<f64>]>) -> Result<Self, TchError> {
        let affine =
            affine.map(|[shift, slope]| Ok::<_, TchError>([Raw::f_from_slice(&shift)?, Raw::f_from_slice(&slope)?]));
        let rows = |rows: &[Vec<f64>]| Raw::f_from_slice(&rows.concat())?.f_view([rows.len() as i64, -1]);
        Ok(Self { affine: affine.transpose()?, stretch: stretch.map(rows).transpose()? })
    }

    pub fn named(&self) -> Vec<(String, Raw)> {
        let affine = self.affine.iter().flat_map(|[shift, slope]| [("shift", shift), ("slope", slope)]);
        let all = affine.chain(self.stretch.iter().map(|stretch| ("stretch", stretch)));
        all.map(|(name, raw)| (format!("{}{name}", Self::PREFIX), raw.shallow_clone())).collect()
    }

    /// Reads the buffers that a checkpoint holds under `prefix` and the names above, for `cells` output cells and
    /// `levels` quantiles.
    ///
    /// # Errors
    /// [`ModelError::Buffer`] for buffers of another shape.
    pub fn restore(saved: &BTreeMap<String, Raw>, prefix: &str, levels: i64, cells: i64) -> Result<Self, ModelError> {
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

    pub fn to_device(&mut self, device: Device) {
        for buffer in self.affine.iter_mut().flatten().chain(&mut self.stretch) {
            *buffer = buffer.to_device(device);
        }
    }

    /// Calibrates standardised locations (B, O).
    pub(super) fn location(&self, cx: &Cx, z: &Tensor) -> Result<Tensor, OpError> {
        let Some([shift, slope]) = &self.affine else { return Ok(z.clone()) };
        functional::add(cx, &functional::mul(cx, z, &constant(cx, slope)?)?, &constant(cx, shift)?)
    }

    /// Returns the factors (levels − 1, O) of the distances between quantiles.
    pub(super) fn stretch(&self, cx: &Cx) -> Result<Option<Tensor>, OpError> {
        self.stretch.as_ref().map(|stretch| constant(cx, stretch)).transpose()
    }
}

/// Casts a buffer to the dtype that it is applied in.
fn constant(cx: &Cx, buffer: &Raw) -> Result<Tensor, OpError> {
    functional::cast(cx, &cx.constant(buffer.shallow_clone()), Kind::Float)
}
