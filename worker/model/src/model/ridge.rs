//! Ridge regression in closed form whose strengths are chosen by cross-validation: the scale of each column, and the
//! shrinkage of each direction of the targets.
//!
//! One common strength fails in three ways: cells of a grid vary together, so that their leading components carry
//! signal and the trailing ones noise; hundreds of uninformative columns hide the few informative ones; and crosses of
//! categories matter in one table and are noise in another. So a column is scaled by a power of its correlation with
//! the targets, all crosses by a common factor, and the leading components of the targets choose power, factor and λ
//! for themselves where that is significantly better than the common choice.
//!
//! One eigendecomposition serves every λ: of X Xᵀ when there are fewer rows than columns (dual), else of Xᵀ X, which is
//! accumulated over blocks of rows.

mod basis;
mod centred;
mod choice;

use super::components::directions;
use basis::Basis;
use centred::Centred;
use choice::StrengthChoice;
use tch::{Kind, TchError, Tensor as Raw};

pub(super) use centred::{blocks, column_mean};
pub(super) use choice::folds;

/// A fitted regression y = W x + b.
#[derive(Debug)]
pub(super) struct Ridge {
    /// W of shape (O, F), f64.
    pub(super) weight: Raw,
    /// b of shape (O), f64.
    pub(super) bias: Raw,
    /// Chosen λ and effective degrees of freedom (without the intercept) per leading component of the targets, then of
    /// the remainder.
    pub(super) strengths: Vec<(f64, f64)>,
}

impl Ridge {
    /// Fits x (n, F) to y (n, O) f64, both without missing values, n ≥ 3. The last `crosses` columns are products of
    /// others. The result depends on the rows only.
    pub(super) fn fit(x: &Raw, y: &Raw, crosses: i64) -> Result<Self, TchError> {
        let (rows, cells) = y.size2()?;
        if cells <= rows {
            return Self::fit_cells(x, y, crosses);
        }
        // Fewer rows than cells span fewer directions, and a rotation of the targets changes neither fit nor choice.
        let mean = column_mean(y)?;
        let y = y.f_sub(&mean)?;
        let (spanned, _) = directions(&y, rows)?;
        if spanned.size()[1] == 0 {
            return Self::fit_cells(x, &y.f_add(&mean)?, crosses);
        }
        let Self { weight, bias, strengths } = Self::fit_cells(x, &y.f_matmul(&spanned)?, crosses)?;
        let bias = spanned.f_mv(&bias)?.f_add_(&mean.f_reshape([-1])?)?;
        Ok(Self { weight: spanned.f_matmul(&weight)?, bias, strengths })
    }

    /// Fits each cell separately, otherwise like [`Ridge::fit`].
    fn fit_cells(x: &Raw, y: &Raw, crosses: i64) -> Result<Self, TchError> {
        let x_mean = column_mean(x)?;
        let y_mean = column_mean(y)?;
        let choice = StrengthChoice::by_cross_validation(x, y, crosses)?;
        let y = y.f_sub(&y_mean)?;
        let (leading, _) = directions(&y, choice.components())?;
        let mut weight = Raw::f_zeros([x.size()[1], y.size()[1]], (Kind::Double, x.device()))?;
        let rows = Centred::of(x, &x_mean, &y)?;
        let mut strengths = vec![(0.0, 0.0); choice.picks.len()];
        for candidate in choice.candidates() {
            let basis = Basis::new(&rows, &candidate.scales(&rows, crosses)?)?;
            for (part, pick) in choice.picks.iter().enumerate().filter(|(_, pick)| pick.candidate == candidate) {
                let lambda = pick.strength * basis.unit;
                // Part of the targets that the choice applies to: one direction, or the remainder.
                let part_weight = match part as i64 {
                    k if k < leading.size()[1] => {
                        let v = leading.f_narrow(1, k, 1)?;
                        basis.solve(&basis.against.f_matmul(&v)?, lambda)?.f_matmul(&v.f_tr()?)?
                    }
                    k if k < choice.components() => continue,
                    _ => {
                        let along = basis.against.f_matmul(&leading)?.f_matmul(&leading.f_tr()?)?;
                        basis.solve(&basis.against.f_sub(&along)?, lambda)?
                    }
                };
                weight = weight.f_add(&part_weight)?;
                strengths[part] = (lambda, basis.freedom(lambda)?);
            }
        }
        let weight = weight.f_tr()?.f_contiguous()?;
        let bias = y_mean.f_reshape([-1])?.f_sub(&weight.f_mv(&x_mean.f_reshape([-1])?)?)?;
        Ok(Self { weight, bias, strengths })
    }

    /// Returns the fitted values (n, O) for x (n, F).
    pub(super) fn predict(&self, x: &Raw) -> Result<Raw, TchError> {
        x.f_to_kind(Kind::Double)?.f_matmul(&self.weight.f_tr()?)?.f_add(&self.bias)
    }

    /// Subtracts the fitted values for x (n, F) from y (n, O), in place.
    pub(super) fn take_from(&self, y: &Raw, x: &Raw) -> Result<(), TchError> {
        for (start, len) in blocks(x) {
            let _ = y.f_narrow(0, start, len)?.f_sub_(&self.predict(&x.f_narrow(0, start, len)?)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
