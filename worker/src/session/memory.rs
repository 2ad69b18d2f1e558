//! Whether a step's activations fit: two recordings on a few rows tell what each further row costs.
//!
//! **Invariant:** the answer is that of the rank with the least memory, so that all ranks run the same program.

use super::{SessionError, boot::COLLECTIVE_WAIT_MAX, learner::Parts, step::Place};
use crate::{autograd::Cx, backend::graph, comm::Reduce, data::Batch};
use enn_common::config::train::Recompute;
use tch::{Device, Kind, Tensor as Raw};

/// Rows of the two recordings.
const PROBES: [i64; 2] = [1, 3];
/// Share of the free memory that activations may take: the rest is for workspaces, fragments and collectives.
const SHARE: f64 = 0.8;

/// Decides whether blocks compute their activations again. Every rank calls it with its first batch.
///
/// # Errors
/// Those of the model and of the collective.
pub(super) fn recompute(
    setting: Recompute,
    parts: &Parts<'_>,
    place: &Place<'_>,
    batch: &Batch,
) -> Result<bool, SessionError> {
    let free = match (setting, place.device) {
        (Recompute::Always, _) => return Ok(true),
        // A host has swap, and no honest number of free bytes.
        (Recompute::Never, _) | (Recompute::Auto, Device::Cpu) => return Ok(false),
        (Recompute::Auto, Device::Cuda(index)) => graph::memory(index)?.0,
        (Recompute::Auto, _) => return Ok(false),
    };
    let rows = batch.x.size()[0] / place.accumulation.cast_signed();
    let [few, more] = [probe(parts, batch, PROBES[0])?, probe(parts, batch, PROBES[1])?];
    let needed = estimate(rows, few, more);
    let wanted = if needed > SHARE * free as f64 { 1.0 } else { 0.0 };
    let vote = Raw::f_from_slice(&[wanted])?.f_to_kind(Kind::Double)?.f_to_device(place.device)?;
    place.group.all_reduce(&vote, Reduce::Max)?.wait(COLLECTIVE_WAIT_MAX)?;
    let on = vote.f_double_value(&[0])? > 0.0;
    tracing::info!(needed_mb = needed / 1e6, free_mb = free as f64 / 1e6, on, "activations");
    Ok(on)
}

/// Bytes for `rows` rows, from those for the two probes.
fn estimate(rows: i64, few: u64, more: u64) -> f64 {
    let each = (more as f64 - few as f64) / (PROBES[1] - PROBES[0]) as f64;
    few as f64 + each.max(0.0) * (rows - PROBES[0]).max(0) as f64
}

/// Peak bytes of forward and backward over the batch's first rows. The gradients are thrown away by the step that follows.
fn probe(parts: &Parts<'_>, batch: &Batch, rows: i64) -> Result<u64, SessionError> {
    let rows = rows.min(batch.x.size()[0]);
    let part = batch.narrow(0, rows)?;
    let cx = Cx::train(parts.params, 0, 0);
    let output = parts.model.forward(&cx, &cx.input(part.x), &cx.input(part.x_mask))?;
    let targets = parts.model.targets(&cx, &cx.input(part.y), &cx.input(part.y_mask))?;
    let loss = parts.objective.forward(&cx, &output, &targets)?;
    cx.backward(&loss.sum, parts.grads, &mut |_, _| Ok(()))?;
    Ok(cx.with_program(|program| program.peak_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_grows_by_the_row() {
        assert_eq!(estimate(1, 100, 140), 100.0);
        assert_eq!(estimate(11, 100, 140), 300.0);
        assert_eq!(estimate(11, 100, 100), 100.0);
    }
}
