//! After training and averaging: what the weights that are kept get wrong on the validation rows is taken out of their answers, as
//! buffers beside the weights (see [`Calibration`]).
//!
//! ```text
//! validation rows ─► quantiles and targets of all ranks, the same bits on each ─┬─► affine: shift and slope of the location by cell
//!                                                                               └─► intervals: how far quantiles must lie apart
//! ```
//! **Invariant:** looks at validation rows, and for the drift in time at training rows; every rank comes to the same numbers, whatever
//! the world.

mod affine;
mod intervals;
mod sample;

use super::evaluate::EvalModel;
use crate::collective;
use crate::session::{SessionError, dataset::Dataset, excluded_rows::ExcludedRows};
use enn_comm::ProcessGroup;
use enn_common::{
    config::train::{PointCalibration, TrainConfig},
    staged::Split,
};
use enn_model::{loss::Head, model::Calibration};
use tch::Device;

/// With fewer validation rows than this an answer is the model's own.
const ROWS_MIN: usize = 8;

/// A calibration, and what was decided on the way.
#[derive(Debug, Default)]
pub(crate) struct Fitted {
    pub(crate) calibration: Calibration,
    pub(crate) decisions: Vec<String>,
}

/// Fits what `train` asks for to the present weights of a model, which answers uncalibrated. Collective.
pub(crate) fn fit(
    model: &EvalModel<'_>,
    data: &Dataset,
    left_out: &ExcludedRows,
    train: &TrainConfig,
    group: &dyn ProcessGroup,
    device: Device,
) -> Result<Fitted, SessionError> {
    let levels = train.quantile_levels();
    let intervals = train.calibrate_intervals && levels.len() > 1;
    let points = train.calibration != PointCalibration::Off && *model.objective.head() != Head::Classes;
    let mut fitted = Fitted::default();
    if !intervals && !points {
        return Ok(fitted);
    }
    let quantiles = levels.len().max(1);
    let rows = sample::rows(data, quantiles);
    if rows.len() < ROWS_MIN {
        let rows = rows.len();
        let all = data.rows(Split::Val).len();
        let room = if (rows as u64) < all { format!(", and {rows} of them have room") } else { String::new() };
        fitted.decisions.push(format!("no calibration: {all} validation rows{room}, expected at least {ROWS_MIN}"));
        return Ok(fitted);
    }
    let in_time = data.validates_later();
    let passes = points && in_time && train.calibration == PointCalibration::Auto;
    if passes {
        let reason =
            "the validation rows are one stretch of time behind the training rows, and a shift there does not last";
        fitted.decisions.push(format!("affine calibration left out: {reason}"));
        if !intervals {
            return Ok(fitted);
        }
    }
    let mut sample = sample::gather(model, data, left_out, &rows, quantiles, group, device)?;
    let mut affine = None;
    let mut stretch = None;
    if points && !passes {
        let meta = data.staged.0.meta();
        let std = meta.y_stats.iter().map(|stats| stats.std);
        // Cells without a unit in common count in their own spread; those that do not vary have no say.
        let (spread, unit) = match meta.scales() {
            None => (std.collect::<Vec<f64>>(), meta.units.as_str()),
            Some(_) => (std.map(|std| f64::from(std > 0.0)).collect(), "of each cell's standard deviation"),
        };
        let chosen = affine::choose(&sample, &spread, train.calibration == PointCalibration::Affine);
        fitted.decisions.push(chosen.decision(unit));
        if let Some(maps) = chosen.maps {
            sample.move_locations(&maps);
            affine = Some(maps);
        }
    }
    if intervals {
        let nominal = model.objective.nominal().unwrap_or_default();
        let drift = if in_time { drift(model, data, nominal, group, device)? } else { None };
        let found = intervals::fit(&sample, levels, drift.unwrap_or(1.0));
        fitted.decisions.push(found.decision(nominal, &sample, in_time, drift));
        stretch = Some(found.stretch);
    }
    fitted.calibration = Calibration::new(affine, stretch.as_deref())?;
    Ok(fitted)
}

fn drift(
    model: &EvalModel<'_>,
    data: &Dataset,
    share: f64,
    group: &dyn ProcessGroup,
    device: Device,
) -> Result<Option<f64>, SessionError> {
    let mut found = 0.0;
    if group.rank() == 0 {
        let (rows, held) = data.in_time(enn_model::model::DRIFT_ROWS_MAX, device)?;
        let rows =
            enn_model::model::RowTensors { x: &rows.x, x_valid: &rows.x_mask, y: &rows.y, y_valid: &rows.y_mask };
        found = model.model.drift(model.params, rows, held, share)?.unwrap_or_default();
    }
    let found = collective::sum(group, device, &[found])?[0];
    Ok((found > 0.0).then_some(found))
}
