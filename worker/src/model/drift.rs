//! How much larger errors become in stretches of time that the data do not hold. A chronological split measures errors in one
//! stretch, right behind the training rows; what is predicted later lies in others, with seasons and weather of their own.
//!
//! The regression that the model begins as is fitted again with each of twelve stretches left out in turn, the parts of `data.split.kind`
//! "blocked". Its errors there, beside its
//! errors on the validation rows, say how much the one stretch that validates flatters a forecast.
//!
//! **Invariant:** looks at training and validation rows only.

use super::{Model, ModelError, ridge::Ridge, start::Regressed};
use crate::params::Params;
use tch::{Kind, Tensor as Raw};

/// Stretches.
const STRETCHES: i64 = 12;
/// Rows used at most, evenly spread.
pub const ROWS_MAX: u64 = 2048;
/// With fewer rows in a stretch its errors say nothing.
const STRETCH_ROWS_MIN: i64 = 3;
/// More than this is not believed.
const DRIFT_MAX: f64 = 4.0;
/// Drifts are told in steps of this, so that rounding in other libraries and on other numbers of threads gives the same.
const STEP: f64 = 0.01;

impl Model {
    /// By what factor distances to the median must grow, at least 1, so that a `share` of the targets of left out stretches lies
    /// within what holds that share of the validation targets. Rows are in the order of time, the last `held` of them validate.
    ///
    /// `None` where there are too few rows, or none that a regression says anything of.
    ///
    /// # Errors
    /// When shapes do not fit, or libtorch's eigensolver fails.
    pub fn drift(
        &self,
        params: &Params,
        seen: ([&Raw; 2], [&Raw; 2]),
        held: i64,
        share: f64,
    ) -> Result<Option<f64>, ModelError> {
        let all = self.regressed(params, seen, None)?;
        let rows = all.z.size()[0];
        let trained = rows - held;
        if trained < STRETCHES * STRETCH_ROWS_MIN || held < STRETCH_ROWS_MIN {
            return Ok(None);
        }
        let crosses = self.crosses.columns();
        let validated = quantile(&all.errors(crosses, (trained, rows))?, share)?;
        let edge = |stretch: i64| rows * stretch / STRETCHES;
        let left_out = (0..STRETCHES).map(|stretch| all.errors(crosses, (edge(stretch), edge(stretch + 1))));
        let left_out = quantile(&Raw::f_cat(&left_out.collect::<Result<Vec<_>, _>>()?, 0)?, share)?;
        let drift = left_out / validated;
        Ok(drift.is_finite().then(|| ((drift / STEP).round() * STEP).clamp(1.0, DRIFT_MAX)))
    }
}

impl Regressed {
    /// Absolute errors on the valid cells of rows [start, end) of a regression on all the others; none where that gives no numbers.
    fn errors(&self, crosses: i64, (start, end): (i64, i64)) -> Result<Raw, tch::TchError> {
        let rows = self.z.size()[0];
        let others = |t: &Raw| Raw::f_cat(&[t.f_narrow(0, 0, start)?, t.f_narrow(0, end, rows - end)?], 0);
        let here = |t: &Raw| t.f_narrow(0, start, end - start);
        let fitted = Ridge::fit(&others(&self.features)?, &others(&self.z)?, crosses)?;
        let errors = here(&self.z)?.f_sub(&fitted.predict(&here(&self.features)?)?)?.f_abs()?;
        let valid = here(&self.valid)?.f_to_kind(Kind::Bool)?.f_logical_and(&errors.f_isfinite()?)?;
        errors.f_masked_select(&valid)
    }
}

/// The smallest of `values` that is not below a `share` of them; not a number without any.
fn quantile(values: &Raw, share: f64) -> Result<f64, tch::TchError> {
    let count = values.numel() as i64;
    if count == 0 {
        return Ok(f64::NAN);
    }
    let place = ((share * count as f64).ceil() as i64).clamp(1, count);
    values.f_kthvalue(place, 0, false)?.0.f_double_value(&[])
}
