//! Steps that were refused because a gradient was not finite: noticed without waiting for the device, and explained by running
//! them once more.
//!
//! A refused step changed no weight. On the CPU it is seen at once, and the replay is that step exactly; a device is asked when
//! it is waited for anyway, and the replay uses the weights of then.
//!
//! Where numbers outgrew a low-precision kind, the place runs in f32 for a while: all ranks look at the same steps, so that one
//! collective after the replay makes them agree on the places.
//!
//! **Invariant:** a replay takes part in no collective and changes nothing but the gradient storage, which the next step clears,
//! and the weights' low-precision copies, which are refreshed.

use super::{
    SessionError, agree,
    learner::Learner,
    step::{Place, loss},
};
use crate::{
    autograd::{BucketId, Cx, Program, Role, Val},
    data::Batch,
    error::HookError,
    kernel::{Bisect, Blame, Finding, Rows},
    precision::COOLDOWN_STEPS,
};
use std::collections::{BTreeMap, VecDeque};
use tch::{Device, Kind, Tensor};

/// Steps remembered until the device is asked.
const STEPS_MAX: usize = 8;
/// Replays of one training that found no place to cool down: data that are never finite must not cost every step twice.
const REPLAYS_MAX: u64 = 8;

/// A step that was done.
struct Done {
    step: u64,
    batch: Batch,
    /// 1 when there is nothing to explain, else 0; on the device.
    sound: Tensor,
}

/// The last steps, and how many were replayed.
#[derive(Default)]
pub struct Refusals {
    last: VecDeque<Done>,
    replays: u64,
}

impl Refusals {
    /// The steps remembered are explained no more: other ranks may not remember them.
    pub fn forget(&mut self) {
        self.last.clear();
    }

    /// Of a training in which `replays` found no place to cool down.
    pub fn after(replays: u64) -> Self {
        Self { replays, ..Self::default() }
    }

    /// Replays that found no place to cool down.
    pub fn replays(&self) -> u64 {
        self.replays
    }

    /// Remembers a step. `sound` is 1 when there is nothing to explain, else 0.
    pub fn note(&mut self, step: u64, batch: &Batch, sound: &Tensor) {
        if self.replays >= REPLAYS_MAX {
            return;
        }
        if self.last.len() >= STEPS_MAX {
            self.last.pop_front();
        }
        let share = |tensor: &Tensor| tensor.shallow_clone();
        let (x, x_mask) = (share(&batch.x), share(&batch.x_mask));
        let batch = Batch { x, x_mask, y: share(&batch.y), y_mask: share(&batch.y_mask), real: batch.real };
        self.last.push_back(Done { step, batch, sound: share(sound) });
    }

    /// Reads the flags of the steps remembered, and explains the first that was refused. Waits for the device.
    ///
    /// # Errors
    /// [`SessionError::Poisoned`] when a weight is not finite: only a checkpoint helps. What libtorch says.
    pub fn explain(&mut self, learner: &mut Learner, place: &Place<'_>) -> Result<Option<String>, SessionError> {
        let last = std::mem::take(&mut self.last);
        let flags: Vec<Tensor> = last.iter().map(|done| done.sound.shallow_clone()).collect();
        if flags.is_empty() {
            return Ok(None);
        }
        let flags = Vec::<f64>::try_from(Tensor::f_stack(&flags, 0)?.f_view(-1)?.f_to_device(Device::Cpu)?)?;
        let Some((done, _)) = last.iter().zip(flags).find(|(_, sound)| *sound == 0.0) else { return Ok(None) };
        let now = last.back().map_or(done.step, |last| last.step);
        let replay = replay(learner, place, &done.batch, done.step)?;
        if !cool_down(learner, place, &replay, now)? {
            self.replays += 1;
        }
        replay.found.map(|found| found.told(learner, done.step)).transpose()
    }
}

/// What a replay gave.
#[derive(Default)]
struct Replay {
    found: Option<Found>,
    /// The dotted paths of all places of the model, in the order of its code: the same on every rank.
    places: Vec<String>,
}

/// A finding with its place in the model.
struct Found {
    finding: Finding,
    place: String,
    /// The place's number, if the operation works below f32 and its numbers outgrew that.
    low: Option<usize>,
    /// What the bad operand is for.
    role: Option<Role>,
}

/// Runs a step's share of this rank once more, operation by operation beside the plain references.
fn replay(learner: &mut Learner, place: &Place<'_>, batch: &Batch, step: u64) -> Result<Replay, SessionError> {
    let mut replay = Replay::default();
    for micro in 0..place.accumulation {
        learner.grads.zero()?;
        let bisect = Bisect::new(&place.kernels.manager);
        let (_, parts) = learner.split();
        let mut cx = Cx::train(parts.params, place.seed, step);
        cx.set_launcher(&bisect);
        parts.precision.enter(&cx)?;
        let inputs = [&batch.x, &batch.x_mask, &batch.y, &batch.y_mask].map(|raw| cx.input(raw.shallow_clone()));
        let loss = loss(&cx, inputs.each_ref(), (&parts, place), micro)?;
        let forward = cx.with_program(|program| program.recs().len());
        cx.backward(&loss.sum, parts.grads, &mut |_: BucketId, _: &Tensor| -> Result<(), HookError> { Ok(()) })?;
        let found = cx.with_program(|program| {
            let makers = makers(program);
            let end = makers.get(&loss.sum.val()).copied();
            let ends = end.into_iter().chain(forward..program.recs().len());
            let producers =
                |record: usize| program.recs()[record].ins.iter().map(|val| makers.get(val).copied()).collect();
            replay.places = program.places();
            bisect.finding(ends, producers).map(|finding| placed(program, finding))
        });
        if found.is_some() {
            replay.found = found;
            break;
        }
    }
    Ok(replay)
}

/// Agrees with all ranks on the places whose numbers outgrew a low-precision kind; whether there are any. One collective.
fn cool_down(learner: &mut Learner, place: &Place<'_>, replay: &Replay, step: u64) -> Result<bool, SessionError> {
    if !learner.precision.is_low() {
        return Ok(false);
    }
    let mut votes = vec![0.0; replay.places.len()];
    if let Some(low) = replay.found.as_ref().and_then(|found| found.low) {
        votes[low] = 1.0;
    }
    let votes = agree::sum(place.group, place.device, &votes)?;
    let troubled: Vec<&String> =
        replay.places.iter().zip(votes).filter(|(_, votes)| *votes > 0.0).map(|(path, _)| path).collect();
    for path in &troubled {
        learner.precision.trouble(path, step);
    }
    Ok(!troubled.is_empty())
}

/// The record that made each value.
fn makers(program: &Program) -> BTreeMap<Val, usize> {
    let made = program.recs().iter().enumerate();
    made.flat_map(|(record, rec)| rec.outs().map(move |val| (val, record))).collect()
}

fn placed(program: &Program, finding: Finding) -> Found {
    let rec = program.recs().get(finding.record);
    let place = rec.map_or_else(String::new, |rec| program.place(rec.scope));
    let role = match (&finding.blame, rec) {
        (Blame::Operand { operand, .. }, Some(rec)) => rec.ins.get(*operand).map(|val| program.val(*val).role),
        _ => None,
    };
    let is_low = rec.is_some_and(|rec| {
        let mut kinds = rec.ins.iter().copied().chain(rec.outs()).map(|val| program.val(val).meta.kind);
        kinds.any(|kind| matches!(kind, Kind::Half | Kind::BFloat16 | Kind::Float8e4m3fn | Kind::Float8e5m2))
    });
    let low = rec.filter(|_| is_low && matches!(finding.blame, Blame::Result { .. })).map(|rec| rec.scope.index());
    Found { finding, place, low, role }
}

/// Rows in words.
fn named(rows: &Rows) -> String {
    let first = rows.first.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let more = if rows.total > rows.first.len() as u64 { ", …" } else { "" };
    format!("{} rows ({first}{more})", rows.total)
}

impl Found {
    /// The sentence for the user.
    fn told(self, learner: &Learner, step: u64) -> Result<String, SessionError> {
        let Self { finding, place, low, role } = self;
        let op = finding.op;
        let cause = match (finding.blame, role) {
            (Blame::Kernel(fault), _) => format!("kernel {} {}", fault.kernel, fault.fault),
            (Blame::Operand { .. }, Some(Role::Param(id))) => {
                let weight = learner.params.name(id).to_owned();
                return Err(SessionError::Poisoned { weight, op, place, step });
            }
            (Blame::Operand { rows, .. }, Some(Role::Input)) => {
                format!("{} of this worker's share of the batch are not finite", named(&rows))
            }
            (Blame::Operand { operand, rows }, _) => format!("{} of operand {operand} are not finite", named(&rows)),
            (Blame::Result { rows }, _) if low.is_some() => format!(
                "{} of its result are not finite though its operands are: numbers have outgrown a low-precision kind; \
                 the place computes in fp32 for {COOLDOWN_STEPS} steps",
                named(&rows)
            ),
            (Blame::Result { rows }, _) => format!(
                "{} of its result are not finite though its operands are: numbers have grown too large (are rows of the \
                 data far out of range? else a smaller train.lr helps)",
                named(&rows)
            ),
        };
        Ok(format!("step {step} was refused because its gradient was not finite: {op} at {place}: {cause}"))
    }
}
