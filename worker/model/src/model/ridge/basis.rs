//! The eigenbasis of a regression, in which one decomposition serves every strength.

use super::centred::Centred;
use tch::{Kind, TchError, Tensor as Raw};

/// Centred and scaled columns in their eigenbasis: W(λ) = S Q (Λ + λ)⁻¹ R.
pub(super) struct Basis {
    /// S Q of shape (F, m).
    pub(super) back: Raw,
    /// Λ of shape (m), not negative.
    pub(super) eigen: Raw,
    /// R of shape (m, O).
    pub(super) against: Raw,
    /// Mean squared length of a scaled row, the unit of strengths.
    pub(super) unit: f64,
}

impl Basis {
    /// Decomposes centred rows with their columns scaled by `scales` (F).
    pub(super) fn new(rows: &Centred, scales: &Raw) -> Result<Self, TchError> {
        let column = scales.f_unsqueeze(1)?;
        let (eigen, against, back) = match rows {
            Centred::Rows { x, y, .. } => {
                let x = x.f_mul(scales)?;
                let (eigen, vectors) = x.f_matmul(&x.f_tr()?)?.f_linalg_eigh("L")?;
                (eigen, vectors.f_tr()?.f_matmul(y)?, x.f_tr()?.f_matmul(&vectors)?)
            }
            Centred::Sums { gram, along, .. } => {
                let (eigen, vectors) = gram.f_mul(scales)?.f_mul_(&column)?.f_linalg_eigh("L")?;
                (eigen, vectors.f_tr()?.f_matmul(&along.f_mul(&column)?)?, vectors)
            }
        };
        let eigen = eigen.f_clamp_min(0.0)?;
        let unit = eigen.f_sum(Kind::Double)?.f_double_value(&[])? / rows.count() as f64;
        // Without variance in any column, every strength gives W = 0.
        let unit = if unit > 0.0 { unit } else { 1.0 };
        Ok(Self { back: back.f_mul(&column)?, eigen, against, unit })
    }

    /// Returns S Q (Λ + λ)⁻¹ `right`: (m, C) → (F, C).
    pub(super) fn solve(&self, right: &Raw, lambda: f64) -> Result<Raw, TchError> {
        self.back.f_matmul(&right.f_div(&self.eigen.f_add_scalar(lambda)?.f_unsqueeze(1)?)?)
    }

    pub(super) fn freedom(&self, lambda: f64) -> Result<f64, TchError> {
        self.eigen.f_div(&self.eigen.f_add_scalar(lambda)?)?.f_sum(Kind::Double)?.f_double_value(&[])
    }
}
