//! Steps that were refused because a gradient was not finite: noticed without waiting for the device, and explained by running
//! them once more.
//!
//! A refused step changed no weight. On the CPU it is seen at once, and the replay is that step exactly; a device is asked when
//! it is waited for anyway, and the replay uses the weights of then.
//!
//! Where numbers outgrew a low-precision kind, the place runs in f32 for a while. Rows of the data are to blame when a
//! result is not finite in them only and the step is finite as soon as they weigh nothing: they are left out from then on. All
//! ranks look at the same steps, so that one collective after the replay makes them agree on places and rows.
//!
//! **Invariant:** a replay takes part in no collective and changes nothing but the gradient storage, which the next step clears,
//! and the weights' low-precision copies, which are refreshed.

use super::step::{StepContext, loss};
use crate::collective;
use crate::data::{Batch, Position, Sampler};
use crate::session::nonfinite_cause::{End, NonfiniteCause};
use crate::session::{SessionError, learner::Learner};
use enn_core::autograd::{BucketId, Cx, Program, Role};
use enn_core::{error::HookError, kernel::Bisect};
use std::collections::{BTreeSet, VecDeque};
use tch::{Device, Tensor};

/// Steps remembered until the device is asked.
const STEPS_MAX: usize = 8;
/// Replays of one micro-batch, each without the rows that those before it suspect.
const SEARCHES_MAX: usize = 4;
/// Replays of one training that found nothing to change: data that are never finite must not cost every step twice.
const REPLAYS_MAX: u64 = 8;

struct DoneStep {
    /// Steps done before it, and its place in the order of samples.
    at: (u64, Position),
    batch: Batch,
    /// 1 when there is nothing to explain, else 0; on the device.
    sound: Tensor,
}

/// Knowledge of rows besides a batch.
pub struct Rows<'a> {
    pub order: &'a Sampler,
    /// Identities of the rows of the staged order.
    pub ids: &'a [i64],
}

/// The result of looking at the last steps, equal on all ranks but for the message.
#[derive(Default)]
pub struct Explained {
    /// The step that was explained: steps done before it, and its place in the order of samples.
    pub at: Option<(u64, Position)>,
    /// Places in that step's global batch of the rows to leave out, ascending.
    pub left_out: Vec<usize>,
    /// The sentence for the user, on ranks that found something.
    pub message: Option<String>,
}

/// The last steps, and how many were replayed.
#[derive(Default)]
pub struct NonfiniteSteps {
    last: VecDeque<DoneStep>,
    replays: u64,
}

impl NonfiniteSteps {
    /// The steps remembered are explained no more: other ranks may not remember them.
    pub fn forget(&mut self) {
        self.last.clear();
    }

    /// Of a training in which `replays` found nothing to change.
    pub fn after(replays: u64) -> Self {
        Self { replays, ..Self::default() }
    }

    /// Replays that found nothing to change.
    pub fn replays(&self) -> u64 {
        self.replays
    }

    /// Remembers the step at `at`. `sound` is 1 when there is nothing to explain, else 0.
    pub fn note(&mut self, at: (u64, Position), batch: &Batch, sound: &Tensor) {
        if self.replays >= REPLAYS_MAX {
            return;
        }
        if self.last.len() >= STEPS_MAX {
            self.last.pop_front();
        }
        self.last.push_back(DoneStep { at, batch: batch.shallow_clone(), sound: sound.shallow_clone() });
    }

    /// Reads the flags of the steps remembered, and explains the first that was refused. Waits for the device.
    ///
    /// # Errors
    /// [`SessionError::NonfiniteWeight`] when a weight is not finite: only a checkpoint helps. What libtorch says.
    pub fn explain(
        &mut self,
        learner: &mut Learner,
        ctx: &StepContext<'_>,
        rows: &Rows<'_>,
    ) -> Result<Explained, SessionError> {
        let last = std::mem::take(&mut self.last);
        let flags: Vec<Tensor> = last.iter().map(|done| done.sound.shallow_clone()).collect();
        if flags.is_empty() {
            return Ok(Explained::default());
        }
        let flags = Vec::<f64>::try_from(Tensor::f_stack(&flags, 0)?.f_view(-1)?.f_to_device(Device::Cpu)?)?;
        let Some((done, _)) = last.iter().zip(flags).find(|(_, sound)| *sound == 0.0) else {
            return Ok(Explained::default());
        };
        let step = done.at.0;
        let batch = &done.batch;
        let now = last.back().map_or(step, |last| last.at.0);
        learner.unshard(ctx.group)?;
        learner.arrays.grads.fill()?;
        let replay = replay(learner, ctx, batch, step)?;
        learner.reshard()?;
        let samples = rows.order.samples(done.at.1) as usize;
        let ballot = Ballot { first: ctx.first_row as usize, real: batch.real, samples };
        let (cooled, left_out) = vote(learner, ctx, &replay, &ballot, now)?;
        if !cooled && left_out.is_empty() {
            self.replays += 1;
        }
        let own = replay.suspected.iter().filter(|slot| left_out.binary_search(&ballot.place(**slot)).is_ok());
        let own: BTreeSet<i64> = own.map(|slot| rows.ids[batch.rows[*slot] as usize]).collect();
        let message = replay.found.map(|found| found.sentence(&learner.arrays.params, step, &own)).transpose()?;
        Ok(Explained { at: Some(done.at), left_out, message })
    }
}

#[derive(Default)]
struct ReplayFindings {
    found: Option<NonfiniteCause>,
    /// The dotted paths of all places of the model, in the order of its code: the same on every rank.
    places: Vec<String>,
    /// Slots of rows without which a step is finite that is not finite with them.
    suspected: Vec<usize>,
}

/// Replays a step's share of this rank.
fn replay(
    learner: &mut Learner,
    ctx: &StepContext<'_>,
    batch: &Batch,
    step: u64,
) -> Result<ReplayFindings, SessionError> {
    let mut replay = ReplayFindings::default();
    let batch = batch.duplicate()?;
    for micro in 0..ctx.accumulation {
        search(learner, ctx, &batch, step, micro, &mut replay)?;
    }
    Ok(replay)
}

/// Replays a micro-batch until it is finite, each time without the rows suspected so far, which lose their weight in `batch`.
fn search(
    learner: &mut Learner,
    ctx: &StepContext<'_>,
    batch: &Batch,
    step: u64,
    micro: u64,
    replay: &mut ReplayFindings,
) -> Result<(), SessionError> {
    let slots = batch.rows.len() / ctx.accumulation as usize;
    let mut suspected = Vec::new();
    for _ in 0..SEARCHES_MAX {
        let Some(found) = run(learner, ctx, batch, step, micro, &mut replay.places)? else {
            replay.suspected.append(&mut suspected);
            return Ok(());
        };
        let begin = micro as usize * slots;
        let mut more = match found.role {
            Some(Role::Input) => batch.not_finite()?,
            _ => found.slots(slots).into_iter().map(|slot| begin + slot).collect(),
        };
        more.retain(|slot| !suspected.contains(slot));
        replay.found.get_or_insert(found);
        if more.is_empty() {
            return Ok(());
        }
        batch.leave_out(&more)?;
        suspected.append(&mut more);
    }
    Ok(())
}

/// Runs a micro-batch once more, operation by operation beside the plain references.
fn run(
    learner: &mut Learner,
    ctx: &StepContext<'_>,
    batch: &Batch,
    step: u64,
    micro: u64,
    places: &mut Vec<String>,
) -> Result<Option<NonfiniteCause>, SessionError> {
    learner.arrays.grads.zero()?;
    let bisect = Bisect::new(&ctx.kernels.manager);
    let (_, parts) = learner.split();
    let mut cx = Cx::train(&parts.arrays.params, ctx.seed, step);
    cx.set_launcher(&bisect);
    cx.set_recompute(parts.recompute);
    parts.precision.enter(&cx)?;
    let inputs = [&batch.x, &batch.x_mask, &batch.y, &batch.y_mask].map(|raw| cx.input(raw.shallow_clone()));
    let loss = loss(&cx, inputs.each_ref(), &parts, ctx, micro)?;
    let records = || cx.with_program(|program| program.recs().len());
    let forward = records();
    cx.backward(&loss.sum, &parts.arrays.grads, &mut |_: BucketId, _: &Tensor| -> Result<(), HookError> { Ok(()) })?;
    *places = cx.with_program(Program::places);
    Ok(NonfiniteCause::of(&cx, &bisect, &[End { loss: loss.sum.val(), backward: forward..records() }]))
}

/// Where this rank's share is in the global batch.
struct Ballot {
    first: usize,
    real: usize,
    samples: usize,
}

impl Ballot {
    /// The place of a slot in the global batch. Slots beyond the share repeat the batch's first row.
    fn place(&self, slot: usize) -> usize {
        if slot < self.real { self.first + slot } else { 0 }
    }
}

/// Agrees with all ranks on the places of the model whose numbers outgrew a low-precision kind, and on the rows to leave out;
/// whether there are such places, and the rows' places in the global batch. One collective.
fn vote(
    learner: &mut Learner,
    ctx: &StepContext<'_>,
    replay: &ReplayFindings,
    ballot: &Ballot,
    now: u64,
) -> Result<(bool, Vec<usize>), SessionError> {
    let places = replay.places.len();
    let mut votes = vec![0.0; places + ballot.samples];
    if let Some(low) = replay.found.as_ref().and_then(|found| found.low) {
        votes[low] = 1.0;
    }
    for slot in &replay.suspected {
        votes[places + ballot.place(*slot)] = 1.0;
    }
    let votes = collective::sum(ctx.group, ctx.device, &votes)?;
    let (low, rows) = votes.split_at(places);
    let cooled = low.iter().any(|votes| *votes > 0.0);
    for (path, _) in replay.places.iter().zip(low).filter(|(_, votes)| **votes > 0.0) {
        learner.precision.trouble(path, now);
    }
    let mut left_out: Vec<usize> = (0..ballot.samples).filter(|&at| rows[at] > 0.0).collect();
    // Where most rows are too much, the weights are.
    if 2 * left_out.len() > ballot.samples {
        left_out.clear();
    }
    Ok((cooled, left_out))
}
