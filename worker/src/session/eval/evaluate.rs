//! Errors of the current weights over a split, each rank doing its part of the rows.

use super::measure::{Measured, Sums};
use crate::session::{
    SessionError, dataset::Dataset, excluded_rows::ExcludedRows, memory::portion::Portion, report::Reporter,
};
use enn_comm::ProcessGroup;
use enn_common::staged::Split;
use enn_core::{autograd::Cx, kernel::Manager, params::Params};
use enn_model::{
    loss::{Head, Objective},
    model::Model,
};
use tch::Device;

/// Rows of one forward pass at most.
pub const EVALUATION_ROWS: u64 = 256;
/// Training rows that are measured at most: all of a large set would be an epoch more, to tell what a part tells as well.
const TRAIN_ROWS_MAX: u64 = 1 << 20;

pub struct EvalModel<'a> {
    pub model: &'a Model,
    pub params: &'a Params,
    pub kernels: &'a Manager,
    /// The loss, and the weights of the cells.
    pub objective: &'a Objective,
    pub portion: &'a Portion,
    pub reporter: &'a dyn Reporter,
}

/// Measures a model on one in `thinning` rows of a split, of those that are not left out; the same numbers on every rank.
pub fn evaluate(
    eval: &EvalModel<'_>,
    data: &Dataset,
    left_out: &ExcludedRows,
    split: Split,
    thinning: u64,
    group: &dyn ProcessGroup,
    device: Device,
) -> Result<Measured, SessionError> {
    let EvalModel { model, objective, .. } = eval;
    let meta = data.staged.0.meta();
    let centre: Vec<f64> = meta.y_stats.iter().map(|stats| stats.mean).collect();
    let mut sums = Sums::new(&centre, device)?.scaled(meta.scales().as_deref())?;
    let kept = measured(split, data.rows(split).len()).div_ceil(thinning);
    let (start, end) = part(kept, u64::from(group.rank()), u64::from(group.size()));
    eval.portion.each(start..end, eval.reporter, |rows| {
        let mut part = sums.another()?;
        let batch = data.gather(split, kept, rows, device)?;
        left_out.leave_out_of(&batch)?;
        let mut cx = Cx::eval(eval.params);
        cx.set_launcher(eval.kernels);
        let output = model.forward(&cx, &cx.input(batch.x), &cx.input(batch.x_mask))?;
        let answer = model.answer(&cx, &output)?;
        let targets = model.targets(&cx, &cx.input(batch.y.shallow_clone()), &cx.input(batch.y_mask))?;
        let weight = objective.weight(&cx, &targets)?;
        let weight = weight.as_ref().map(|weight| weight.raw());
        let mask = targets.valid.raw();
        part.add(answer.point.raw(), &batch.y, mask, weight)?;
        part.add_loss(&objective.score(&cx, &model.calibrated(&cx, &output)?, &targets)?)?;
        if let (Some(low), Some(high)) = (answer.quantiles.first(), answer.quantiles.last()) {
            part.add_interval(low.raw(), high.raw(), &batch.y, mask, weight)?;
        }
        if *objective.head() == Head::Classes {
            part.add_classes(answer.point.raw(), &batch.y, mask, weight)?;
            part.add_doubt(output.z.raw(), mask, weight)?;
        }
        part.add_gate(output.gate.raw(), batch.real)?;
        sums.merge(&part)
    })?;
    sums.finish(group, objective)
}

/// How many of the rows of a split are measured.
pub fn measured(split: Split, rows: u64) -> u64 {
    if split == Split::Train { rows.min(TRAIN_ROWS_MAX) } else { rows }
}

/// A rank's contiguous part of `rows`.
fn part(rows: u64, rank: u64, world: u64) -> (u64, u64) {
    let cut = |r: u64| (u128::from(rows) * u128::from(r) / u128::from(world)) as u64;
    (cut(rank), cut(rank + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_training_split_is_thinned_and_nothing_else() {
        let of = |rows| Split::ALL.map(|split| measured(split, rows));
        assert_eq!(of(1000), [1000; 3]);
        assert_eq!(of(100_000_000), [TRAIN_ROWS_MAX, 100_000_000, 100_000_000]);
    }

    #[test]
    fn parts_cover_every_row_once() {
        for (rows, world) in [(0, 3), (2, 5), (100, 7), (1, 1)] {
            let mut next = 0;
            for rank in 0..world {
                let (start, end) = part(rows, rank, world);
                assert_eq!(start, next);
                next = end;
            }
            assert_eq!(next, rows);
        }
    }
}
