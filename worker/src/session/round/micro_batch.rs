//! Whether a step fits: probes on a rank's own rows tell what a step takes, and what there is room for decides how its share is cut
//! and whether blocks compute their activations again.
//!
//! **Invariant:** the answer is that of the rank with the least memory, so that all ranks run the same program.

use super::step::StepContext;
use crate::session::memory::autobatch::{self, Fit};
use crate::session::{SessionError, learner::Parts, memory::room::Room};
use crate::{collective::COLLECTIVE_WAIT_MAX, data::Batch};
use enn_comm::Reduce;
use enn_common::config::train::{Recompute, TrainConfig};
use enn_common::fs::memory;
use enn_core::autograd::{BucketId, Cx, GradLeaves};
use enn_core::{backend::graph, error::HookError, op::collective::Unasked};
use tch::{Device, Kind, Tensor as Raw};

/// Rows of the two recordings that say whether activations fit.
const PROBES: [i64; 2] = [1, 3];
/// Share of the free memory that activations may take: the rest is for workspaces, fragments and collectives.
const SHARE: f64 = 0.8;
/// Bytes that a step on a CPU takes at most, unless that is room for fewer than `MICRO_ROWS_MIN` rows: more rows at once gain nothing there.
const HOST_STEP_MAX: u64 = 1 << 30;
/// Activations are computed again rather than in micro-batches of fewer rows than this.
const MICRO_ROWS_MIN: u64 = 16;

/// How a rank's share is computed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MicroBatchPlan {
    pub(crate) share: u64,
    pub(crate) accumulation: u64,
    /// Whether blocks compute their activations again.
    pub(crate) recompute: bool,
    /// Rows that surely fit where there is no backward pass, by what this rank measured.
    pub(crate) eval_rows: u64,
    /// Why, from the numbers of the rank that measured.
    pub(crate) reason: String,
}

/// Cuts this rank's share, the rows of `batch`, by what fits into its memory.
pub(crate) fn measure(
    config: &TrainConfig,
    parts: &Parts<'_>,
    ctx: &StepContext<'_>,
    batch: &Batch,
    local: u32,
) -> Result<MicroBatchPlan, SessionError> {
    let share = batch.rows.len() as u64;
    let given = given(config);
    let fit_with = |recompute, most| {
        let step = |rows: u64| probe(parts, ctx, batch, rows.cast_signed(), recompute);
        autobatch::fit(&mut Room::new(ctx.device, local, given, step).at_most(most), share)
    };
    let mut recompute = config.recompute == Recompute::Always;
    let is_few = |fit: &Fit| fit.rows < share.min(MICRO_ROWS_MIN);
    let most = if ctx.device == Device::Cpu && given.is_none() { HOST_STEP_MAX } else { u64::MAX };
    let mut fit = fit_with(recompute, most)?;
    if is_few(&fit) && most < u64::MAX {
        fit = fit_with(recompute, u64::MAX)?;
    }
    if config.recompute == Recompute::Auto && is_few(&fit) {
        let less = fit_with(true, u64::MAX)?;
        recompute = less.rows > fit.rows;
        fit = if recompute { less } else { fit };
    }
    // A step takes less than there is room for, by choice; validation may take all of it.
    let is_choice = given.is_none() && fit.is_within(HOST_STEP_MAX);
    let free = memory::available_bytes().filter(|_| is_choice).map(|bytes| bytes as f64 / f64::from(local.max(1)));
    let limit = free.map_or(fit.limit as f64, |free| SHARE * free);
    let eval_rows = (fit.rows as f64 * limit / fit.needed.max(1) as f64).max(1.0) as u64;
    Ok(MicroBatchPlan {
        share,
        accumulation: share.div_ceil(fit.rows),
        recompute,
        eval_rows,
        reason: reason(&fit, share, given),
    })
}

/// The cut of the rank with the least memory. One collective.
pub(crate) fn agree(own: &MicroBatchPlan, ctx: &StepContext<'_>) -> Result<MicroBatchPlan, SessionError> {
    let votes = [own.accumulation as f64, if own.recompute { 1.0 } else { 0.0 }];
    let votes = Raw::f_from_slice(&votes)?.f_to_device(ctx.device)?;
    ctx.group.all_reduce(&votes, Reduce::Max)?.wait(COLLECTIVE_WAIT_MAX)?;
    let votes = Vec::<f64>::try_from(votes.f_to_device(Device::Cpu)?)?;
    let accumulation = votes[0] as u64;
    let recompute = votes[1] > 0.0;
    let reason = if accumulation > own.accumulation { "another worker has less memory" } else { &own.reason };
    Ok(MicroBatchPlan { accumulation, recompute, reason: reason.to_owned(), ..*own })
}

fn reason(fit: &Fit, share: u64, given: Option<u64>) -> String {
    if fit.rows >= share {
        return format!("all {share} rows of a worker's share fit at once");
    }
    let of = match given {
        Some(_) => "train.step_memory_mb",
        None if fit.is_within(HOST_STEP_MAX) => "what a step takes on a CPU",
        None => "the free memory",
    };
    format!("{} of the {share} rows of a worker's share fit at once: {}", fit.rows, fit.explanation(of))
}

/// Bytes that a step may take, where the configuration says so.
fn given(config: &TrainConfig) -> Option<u64> {
    (config.step_memory_mb > 0).then_some(config.step_memory_mb << 20)
}

/// Decides whether blocks compute their activations again, where the number of micro-batches is given. Every rank calls it with its
/// first batch.
pub(crate) fn recompute(
    config: &TrainConfig,
    parts: &Parts<'_>,
    ctx: &StepContext<'_>,
    batch: &Batch,
) -> Result<bool, SessionError> {
    let free = match (config.recompute, given(config), ctx.device) {
        (Recompute::Always, ..) => return Ok(true),
        (Recompute::Never, ..) => return Ok(false),
        (Recompute::Auto, Some(given), _) => given,
        (Recompute::Auto, None, Device::Cuda(index)) => graph::memory(index)?.0,
        // A host has swap, and no honest number of free bytes.
        (Recompute::Auto, None, _) => return Ok(false),
    };
    let rows = batch.x.size()[0] / ctx.accumulation.cast_signed();
    let [few, more] = [probe(parts, ctx, batch, PROBES[0], false)?, probe(parts, ctx, batch, PROBES[1], false)?];
    let needed = estimate(rows, few, more);
    let wanted = if needed > SHARE * free as f64 { 1.0 } else { 0.0 };
    let vote = Raw::f_from_slice(&[wanted])?.f_to_kind(Kind::Double)?.f_to_device(ctx.device)?;
    ctx.group.all_reduce(&vote, Reduce::Max)?.wait(COLLECTIVE_WAIT_MAX)?;
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
fn probe(
    parts: &Parts<'_>,
    ctx: &StepContext<'_>,
    batch: &Batch,
    rows: i64,
    recompute: bool,
) -> Result<u64, SessionError> {
    let peak = recorded_peak(parts, ctx, batch, rows, recompute);
    if peak.is_err() {
        // Gradients that come and go were left where they were.
        parts.arrays.grads.sharded_buffers().iter().try_for_each(|buffer| buffer.set_allocated(false))?;
    }
    peak
}

fn recorded_peak(
    parts: &Parts<'_>,
    ctx: &StepContext<'_>,
    batch: &Batch,
    rows: i64,
    recompute: bool,
) -> Result<u64, SessionError> {
    let unasked = Unasked(parts.arrays.weights.share().world);
    let sharded = !parts.sharding.keeps_weights();
    let rows = rows.min(batch.x.size()[0]);
    let part = batch.narrow(0, rows)?;
    let mut cx = Cx::train(&parts.arrays.params, 0, 0);
    cx.set_launcher(&ctx.kernels.manager);
    cx.set_recompute(recompute);
    if sharded {
        cx.set_collectives(&unasked);
    }
    parts.precision.enter(&cx)?;
    let output = parts.model.forward(&cx, &cx.input(part.x), &cx.input(part.x_mask))?;
    let targets = parts.model.targets(&cx, &cx.input(part.y), &cx.input(part.y_mask))?;
    let loss = parts.objective.forward(&cx, &output, &targets)?;
    let mut reduce = |bucket: BucketId, gradient: &Raw| -> Result<(), HookError> {
        if sharded {
            parts.sharding.reduce_grads(&cx, parts.arrays, bucket, gradient, true)?;
        }
        Ok(())
    };
    cx.backward(&loss.sum, &parts.arrays.grads, &mut reduce)?;
    cx.accumulate_reduced(&parts.arrays.grads, true)?;
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
