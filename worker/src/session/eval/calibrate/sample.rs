//! What a model says of validation rows, beside their targets: gathered from all ranks, so that each holds the same bits.

use crate::collective::COLLECTIVE_WAIT_MAX;
use crate::session::dataset::{Dataset, rows_within};
use crate::session::{SessionError, eval::evaluate::EvalModel, excluded_rows::ExcludedRows};
use enn_comm::ProcessGroup;
use enn_common::staged::Split;
use enn_core::autograd::Cx;
use std::ops::Range;
use tch::{Device, Kind, Tensor};

/// Numbers gathered at most; more rows than that are thinned evenly.
const VALUES_MAX: u64 = 1 << 22;
/// Rows that are gathered also where they are some times as many numbers.
const ROWS_FEW: u64 = 16;
/// Rows of one forward pass. Which rows are computed together does not depend on the world, so that no bit does, unless memory
/// is short.
const FORWARD_ROWS: u64 = 256;

/// Validation rows; all numbers by row, then by cell, in target standard deviations.
#[derive(Debug, Clone)]
pub(crate) struct Sample {
    pub(crate) rows: usize,
    pub(crate) cells: usize,
    /// Weight of a cell; 0 where there is no target.
    pub(crate) weight: Vec<f64>,
    pub(crate) target: Vec<f64>,
    /// One for each level; the location alone where there are none.
    pub(crate) quantiles: Vec<Vec<f64>>,
    /// Which of them is the location.
    pub(crate) middle: usize,
}

impl Sample {
    pub(crate) fn location(&self) -> &[f64] {
        &self.quantiles[self.middle]
    }

    /// Moves locations z to shift + slope·z, and quantiles with them.
    pub(crate) fn move_locations(&mut self, maps: &[Vec<f64>; 2]) {
        let [shift, slope] = maps;
        let cells = self.cells;
        let moves: Vec<f64> =
            self.location().iter().enumerate().map(|(i, z)| shift[i % cells] + (slope[i % cells] - 1.0) * z).collect();
        for quantile in &mut self.quantiles {
            quantile.iter_mut().zip(&moves).for_each(|(q, by)| *q += by);
        }
    }
}

/// The validation rows that are gathered with so many `quantiles` for each cell.
pub(crate) fn rows(data: &Dataset, quantiles: usize) -> Vec<u64> {
    let index = data.rows(Split::Val);
    data.spread(Split::Val, rows_within(VALUES_MAX, width(data, quantiles), ROWS_FEW))
        .map(|ordinal| index.at(ordinal))
        .collect()
}

fn width(data: &Dataset, quantiles: usize) -> u64 {
    ((quantiles + 2) * data.staged.0.outputs()).max(1) as u64
}

/// Gathers so many `quantiles` for each cell of [`rows`]. Two collectives.
pub(crate) fn gather(
    model: &EvalModel<'_>,
    data: &Dataset,
    left_out: &ExcludedRows,
    rows: &[u64],
    quantiles: usize,
    group: &dyn ProcessGroup,
    device: Device,
) -> Result<Sample, SessionError> {
    let cells = data.staged.0.outputs();
    let width = width(data, quantiles);
    let all = Tensor::f_zeros([rows.len() as i64, width as i64], (Kind::Float, device))?;
    let starts = (0..rows.len() as u64).step_by(FORWARD_ROWS as usize);
    for start in starts.skip(group.rank() as usize).step_by(group.size() as usize) {
        let compute = |part: Range<u64>| -> Result<(), SessionError> {
            let batch = data.gather_rows(&rows[part.start as usize..part.end as usize], device)?;
            left_out.leave_out_of(&batch)?;
            let mut cx = Cx::eval(model.params);
            cx.set_launcher(model.kernels);
            let output = model.model.forward(&cx, &cx.input(batch.x), &cx.input(batch.x_mask))?;
            let mut quantiles_z = model.model.quantiles(&cx, &output.z, &output)?;
            if quantiles_z.is_empty() {
                quantiles_z.push(output.z.clone());
            }
            let targets = model.model.targets(&cx, &cx.input(batch.y), &cx.input(batch.y_mask))?;
            let weight = model.objective.weight(&cx, &targets)?;
            let weight = weight.as_ref().unwrap_or(&targets.valid).raw().f_to_kind(Kind::Float)?;
            let mut parts = vec![weight, targets.z.raw().shallow_clone()];
            parts.extend(quantiles_z.iter().map(|quantile| quantile.raw().shallow_clone()));
            // What is not finite has no weight.
            let finite = parts
                .iter()
                .try_fold(targets.valid.raw().shallow_clone(), |all, part| all.f_logical_and(&part.f_isfinite()?))?;
            let parts =
                parts.iter().map(|part| part.f_where_scalarother(&finite, 0.0)).collect::<Result<Vec<_>, _>>()?;
            let start = part.start.cast_signed();
            let count = (part.end - part.start).cast_signed();
            tch::no_grad(|| all.f_narrow(0, start, count)?.f_copy_(&Tensor::f_cat(&parts, 1)?))?;
            Ok(())
        };
        model.portion.each(start..(start + FORWARD_ROWS).min(rows.len() as u64), model.reporter, compute)?;
    }
    // One rank has a row, the others zeros: the sum is exact.
    group.all_reduce_sum(&all)?.wait(COLLECTIVE_WAIT_MAX)?;
    let part = |place: usize| -> Result<Vec<f64>, SessionError> {
        let part = all.f_narrow(1, (place * cells) as i64, cells as i64)?.f_to_device(Device::Cpu)?;
        Ok(Vec::<f64>::try_from(part.f_to_kind(Kind::Double)?.f_contiguous()?.f_view([-1])?)?)
    };
    let mut weight = part(0)?;
    // Whatever they are counted in, they are on average one row.
    let counted = weight.iter().filter(|weight| **weight > 0.0).count().max(1) as f64;
    let mean = weight.iter().sum::<f64>() / counted;
    if mean > 0.0 {
        weight.iter_mut().for_each(|weight| *weight /= mean);
    }
    Ok(Sample {
        rows: rows.len(),
        cells,
        weight,
        target: part(1)?,
        quantiles: (0..quantiles).map(|level| part(2 + level)).collect::<Result<_, _>>()?,
        middle: model.objective.middle(),
    })
}
