//! Errors of the current weights over a split, each rank doing its part of the rows.

use super::{
    SessionError,
    dataset::Dataset,
    measure::{Measured, Sums},
    poisoned::Poisoned,
};
use crate::{autograd::Cx, comm::ProcessGroup, kernel::Manager, model::Model, params::Params};
use enn_common::staged::Split;
use tch::Device;

/// Rows of one forward pass.
const EVALUATION_ROWS: u64 = 256;

/// Measures `model` with `params` on the rows of a split that are not left out; the same numbers on every rank.
///
/// # Errors
/// Those of the forward pass and of the collective.
pub fn evaluate(
    (model, params, kernels): (&Model, &Params, &Manager),
    (data, left_out): (&Dataset, &Poisoned),
    split: Split,
    group: &dyn ProcessGroup,
    device: Device,
) -> Result<Measured, SessionError> {
    let centre: Vec<f64> = data.staged.0.meta().y_stats.iter().map(|stats| stats.mean).collect();
    let mut sums = Sums::new(&centre, device)?;
    let (start, end) = part(data.rows(split).len(), u64::from(group.rank()), u64::from(group.size()));
    let mut at = start;
    while at < end {
        let next = (at + EVALUATION_ROWS).min(end);
        let batch = data.gather(split, at..next, device)?;
        left_out.leave_out_of(&batch)?;
        let mut cx = Cx::eval(params);
        cx.set_launcher(kernels);
        let output = model.forward(&cx, &cx.input(batch.x), &cx.input(batch.x_mask))?;
        let prediction = model.denorm(&cx, &output.z)?;
        let valid = batch.y_mask.f_logical_and(&batch.y.f_isfinite()?)?;
        sums.add(prediction.raw(), &batch.y, &valid)?;
        sums.add_gate(output.gate.raw(), batch.real)?;
        at = next;
    }
    sums.finish(group)
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
