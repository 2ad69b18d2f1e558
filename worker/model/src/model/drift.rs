//! Estimates how much errors grow in periods that the data do not contain. A chronological split measures errors in one
//! period, right after the training rows; forecasts are for other periods, with other seasons and weather.
//!
//! The initial regression of the model is fitted again with each of twelve periods left out in turn, the parts of
//! `data.split.kind` "blocked". The ratio of its errors there to its errors on the validation rows is the estimate.
//!
//! **Invariant:** only training and validation rows are read.

use super::{
    Model, ModelError,
    ridge::Ridge,
    start::{RegressionData, RowTensors},
};
use enn_core::params::Params;
use tch::{Kind, Tensor as Raw};

/// Number of periods that are left out in turn.
const STRETCHES: i64 = 12;
/// Maximum number of rows, evenly spread.
pub const ROWS_MAX: u64 = 2048;
/// Minimum number of rows of a period; fewer give no usable error.
const STRETCH_ROWS_MIN: i64 = 3;
/// Upper limit of the estimate.
const DRIFT_MAX: f64 = 4.0;
/// The estimate is rounded to a multiple of this, so that it does not depend on rounding in other libraries or on the
/// number of threads.
const STEP: f64 = 0.01;

impl Model {
    /// Returns the factor, at least 1, by which distances to the median must grow so that a `share` of the targets of
    /// left-out periods is within the distance that contains this share of the validation targets. Rows are in
    /// chronological order; the last `held` validate.
    ///
    /// Returns `None` with too few rows, or without a regression that predicts any of them.
    ///
    /// # Errors
    /// When shapes do not fit, or libtorch's eigensolver fails.
    pub fn drift(
        &self,
        params: &Params,
        seen: RowTensors<'_>,
        held: i64,
        share: f64,
    ) -> Result<Option<f64>, ModelError> {
        let all = self.regression_data(params, seen, None)?;
        let rows = all.z.size()[0];
        let trained = rows - held;
        if trained < STRETCHES * STRETCH_ROWS_MIN || held < STRETCH_ROWS_MIN {
            return Ok(None);
        }
        let crosses = self.crosses.columns();
        let validated = quantile(&all.errors(crosses, trained, rows)?, share)?;
        let edge = |stretch: i64| rows * stretch / STRETCHES;
        let left_out = (0..STRETCHES).map(|stretch| all.errors(crosses, edge(stretch), edge(stretch + 1)));
        let left_out = quantile(&Raw::f_cat(&left_out.collect::<Result<Vec<_>, _>>()?, 0)?, share)?;
        let drift = left_out / validated;
        Ok(drift.is_finite().then(|| ((drift / STEP).round() * STEP).clamp(1.0, DRIFT_MAX)))
    }
}

impl RegressionData {
    /// Returns the absolute errors on the valid cells of rows [start, end) of a regression on all other rows; none
    /// where the regression gives no numbers.
    fn errors(&self, crosses: i64, start: i64, end: i64) -> Result<Raw, tch::TchError> {
        let rows = self.z.size()[0];
        let others = |t: &Raw| Raw::f_cat(&[t.f_narrow(0, 0, start)?, t.f_narrow(0, end, rows - end)?], 0);
        let here = |t: &Raw| t.f_narrow(0, start, end - start);
        let fitted = Ridge::fit(&others(&self.features)?, &others(&self.z)?, crosses)?;
        let errors = here(&self.z)?.f_sub(&fitted.predict(&here(&self.features)?)?)?.f_abs()?;
        let valid = here(&self.valid)?.f_to_kind(Kind::Bool)?.f_logical_and(&errors.f_isfinite()?)?;
        errors.f_masked_select(&valid)
    }
}

/// Returns the smallest of `values` that is not below a `share` of them; NaN without values.
fn quantile(values: &Raw, share: f64) -> Result<f64, tch::TchError> {
    let count = values.numel() as i64;
    if count == 0 {
        return Ok(f64::NAN);
    }
    let place = ((share * count as f64).ceil() as i64).clamp(1, count);
    values.f_kthvalue(place, 0, false)?.0.f_double_value(&[])
}
