//! The steps of a training loop of one's own, as a session makes them: weights, gradients and AdamW; precision and loss scale;
//! the manager of kernels; the executor that records a step and then runs its record.
//!
//! ```text
//! Steps::step ─► your code: forward ─► StepParts::backward ─► StepParts::complete ─► StepParts::optimize
//! ```
//! A step that was refused, its gradient not being finite, is made once more beside the plain references (`replay`): a kernel that
//! is at fault is left out from then on.
//!
//! Imports `torchrun` and what stands below it. **Invariant:** knows neither model nor data; a step but the first reads nothing back from a device.

mod intents;
mod replay;

use super::precision::{self, Demand, Precision, WeightUpdate};
use super::{SessionError, agree, nonfinite_cause::NonfiniteCause, torchrun::Member};
use crate::checkpoint::{self, Named};
use enn_comm::ProcessGroup;
use enn_common::kernels::{KernelBook, KernelFault, Quarantine};
use enn_core::{
    autograd::{Cx, Executor, Leaves, Mode, Program, Request, StepOutput, Tensor},
    error::{HookError, OpError, OpErrorKind},
    kernel::{self, Bisect, Extra, Intents, KernelEvent, Manager, NoIntents},
    op::collective::{Collectives, Unasked},
    params::{GradBuckets, ParamBuilder, Params},
    profile::Profile,
};
use enn_model::optim::{AdamW, AdamWSettings, Ema, FlatParams, OptimError, StepStats};
use intents::Folder;
use replay::{Given, REPLAYS_MAX, Replay, ReplayState};
use std::{
    cell::Cell,
    collections::BTreeSet,
    path::{Path, PathBuf},
};
use tch::{Device, Tensor as Raw};

pub use enn_common::config::train::Precision as WantedPrecision;

#[derive(Debug, Clone)]
pub struct Setup {
    /// Seed of weights and dropout: the same on every rank.
    pub seed: u64,
    pub optimizer: AdamWSettings,
    pub precision: WantedPrecision,
    pub demand: Demand,
    pub kernels: kernel::Settings,
    pub extras: Vec<Extra>,
    /// How far a step may go from its code.
    pub limit: Mode,
    /// Folder of a profile of a few steps, if one is wanted.
    pub profile: Option<PathBuf>,
}

/// Everything that steps change.
pub struct Steps {
    pub params: Params,
    /// Weights as flat arrays, in the same storage.
    pub weights: FlatParams,
    /// Gradients: what a step adds up over the ranks.
    pub grads: GradBuckets,
    pub precision: Precision,
    /// Chooses kernels; knows which ran, and which were wrong.
    pub kernels: Manager,
    pub executor: Executor,
    optimizer: AdamW,
    profile: Option<Profile>,
    /// Kernels that any rank found wrong, as all ranks agreed.
    book: KernelBook,
    /// This rank and its device, until the ranks have compared what they recorded.
    uncompared: Cell<Option<(u32, Device)>>,
    replay_state: ReplayState,
    seed: u64,
}

/// Everything that the code of a step has beside its context.
pub struct StepParts<'a> {
    pub weights: &'a FlatParams,
    grads: &'a GradBuckets,
    optimizer: &'a AdamW,
    precision: &'a Precision,
    collectives: &'a dyn Collectives,
    uncompared: &'a Cell<Option<(u32, Device)>>,
    /// Progress of the step that is made once more.
    replay: Option<&'a Replay>,
}

impl Steps {
    /// Seeded weights, the same on every rank, for the parameters that a model declared. Every rank calls it: they compare these
    /// parameters, take the same precision, and leave out the kernels that ended a process of an earlier round, under `enn run`.
    ///
    /// # Errors
    /// A kernel that is not there, memory that is not there, other parameters on another rank, a lost rank.
    pub fn new(declared: ParamBuilder, member: &Member, setup: Setup) -> Result<Self, SessionError> {
        let mut params = declared.build(setup.seed, member.device)?;
        let weights = FlatParams::of(&params);
        let shapes = format!("{:?}", weights.shapes().collect::<Vec<_>>());
        agree::agree(member.group.as_ref(), member.device, "parameters", shapes.as_bytes())?;
        let mut grads = GradBuckets::new(&params)?;
        grads.move_to(&params, |flat| Ok::<_, SessionError>(member.group.shared_like(flat)?))?;
        let precision = Precision::decide(setup.precision, setup.demand, member.device, member.group.as_ref())?;
        if let Some(kind) = precision.copies() {
            params.keep_shadows(kind)?;
        }
        let optimizer = AdamW::new(&weights, setup.optimizer)?;
        let folder = Folder::of(&member.environment);
        let intents: Box<dyn Intents> = match &folder {
            Some(folder) => Box::new(folder.intents()),
            None => Box::new(NoIntents),
        };
        let kernels = Manager::new(setup.kernels, setup.extras, intents)?;
        let crashed = folder.as_ref().map(Folder::crashed).unwrap_or_default();
        let crashed = exchange_faults(member.group.as_ref(), member.device, &crashed)?;
        if let Some(folder) = &folder {
            folder.keep(&crashed);
        }
        let profile = setup.profile.map(|folder| Profile::new(folder, member.rank(), member.device));
        let executor = Executor::new(setup.limit);
        let seed = setup.seed;
        let book = KernelBook::default();
        let replay_state = ReplayState::default();
        let uncompared = Cell::new(Some((member.rank(), member.device)));
        let mut steps = Self {
            params,
            weights,
            grads,
            precision,
            kernels,
            executor,
            optimizer,
            profile,
            book,
            uncompared,
            replay_state,
            seed,
        };
        steps.leave_out(crashed);
        Ok(steps)
    }

    /// Makes optimizer step `number` (from 0). `code` computes it from `inputs` and says what it gives; it is recorded, and left
    /// out when two steps in a row recorded the same: what differs between steps comes in as an input. In the first step all
    /// ranks record the same, shapes among it: they compare it before the first gradient travels.
    ///
    /// When the step is refused, `code` is called once more, as far as [`StepParts::complete`], to find the kernel that is at
    /// fault, if one is: steps after this one do without it. On a device that is before the step that follows
    /// [`Steps::agree_on_kernels`]. See [`Steps::why_refused`].
    pub fn step<E: From<OpError>>(
        &mut self,
        collectives: &dyn Collectives,
        number: u64,
        inputs: Vec<Raw>,
        mut code: impl FnMut(&Cx<'_>, &StepParts<'_>, &[Tensor]) -> Result<Vec<Tensor>, E>,
    ) -> Result<StepOutput, E> {
        self.kernels.set_step(number);
        if self.precision.advance(number) {
            self.executor.reset();
        }
        if let Some(due) = self.replay_state.due.take() {
            self.explain(&due, &mut code);
        }
        let given = Given { number, inputs: inputs.iter().map(Raw::shallow_clone).collect() };
        let ran = self.make(collectives, number, inputs, &mut code)?;
        if self.params.device() != Device::Cpu {
            self.replay_state.last = Some(given);
        } else if self.is_refused().map_err(unread)? {
            self.explain(&given, &mut code);
        }
        Ok(ran)
    }

    fn make<E: From<OpError>>(
        &mut self,
        collectives: &dyn Collectives,
        number: u64,
        inputs: Vec<Raw>,
        code: &mut impl FnMut(&Cx<'_>, &StepParts<'_>, &[Tensor]) -> Result<Vec<Tensor>, E>,
    ) -> Result<StepOutput, E> {
        let Self { params, weights, kernels, executor, grads, optimizer, precision, profile, uncompared, .. } = self;
        let parts = StepParts { weights, grads, optimizer, precision, collectives, uncompared, replay: None };
        let request = Request {
            leaves: params,
            seed: self.seed,
            step: number,
            launcher: kernels,
            collectives: Some(collectives),
            inputs,
            watch: None,
            observer: profile.as_ref().and_then(|profile| profile.next(number)),
        };
        executor.step(request, |cx, inputs| {
            precision.enter(cx)?;
            cx.clear_gradients();
            code(cx, &parts, inputs)
        })
    }

    /// Why a step was refused, in a sentence, where that was found since the last call: the operation, its place in the model, and
    /// the kernel, the weight or the rows that were not finite. Other ranks may have found another cause, or none.
    pub fn why_refused(&mut self) -> Option<String> {
        self.replay_state.cause.take()
    }

    /// Puts kernels that any rank found wrong since the last call in quarantine on all ranks, from the next step on; those that
    /// are new there. Every rank calls it after the same steps, often or seldom: until then only the rank that found a kernel
    /// wrong does without it. A device is asked here whether steps were refused. Waits for the device and for the others.
    pub fn agree_on_kernels(
        &mut self,
        group: &dyn ProcessGroup,
        device: Device,
    ) -> Result<Vec<Quarantine>, SessionError> {
        if self.replay_state.last.is_some() && self.is_refused()? {
            self.replay_state.due = self.replay_state.last.take();
        }
        let faults: Vec<KernelFault> =
            self.kernels.take_events().into_iter().filter_map(KernelEvent::into_fault).collect();
        Ok(self.leave_out(exchange_faults(group, device, &faults)?))
    }

    /// Kernels that all ranks leave out.
    pub fn left_out(&self) -> &[Quarantine] {
        &self.book.quarantine
    }

    /// Puts the faults that all ranks know into quarantine, and returns the entries that are new.
    fn leave_out(&mut self, faults: Vec<KernelFault>) -> Vec<Quarantine> {
        let before = self.book.epoch;
        for fault in faults {
            self.book.enter(fault, env!("CARGO_PKG_VERSION"));
        }
        let quarantined = self.book.quarantined();
        self.kernels.begin(&quarantined);
        quarantined.entries.into_iter().filter(|entry| entry.epoch > before).collect()
    }

    /// Writes the profile, if one is wanted and not written yet.
    pub fn finish_profile(&self) {
        self.profile.iter().for_each(Profile::finish);
    }

    /// Weights, moments and loss scale by name: what a checkpoint holds.
    pub fn state(&self) -> Vec<Named> {
        let weights = self.weights.views(self.weights.slabs()).into_iter();
        let model = weights.map(|(name, tensor)| Named { fqn: format!("model.{name}"), tensor });
        let optimizer = self.optimizer.named(&self.weights).into_iter();
        let optimizer = optimizer.map(|(fqn, tensor)| Named { fqn, tensor });
        model.chain(optimizer).chain(self.precision.named()).collect()
    }

    /// Puts the state after `steps` steps in place, from the checkpoint in `folder`.
    pub fn restore(&mut self, folder: &Path, steps: u64) -> Result<(), SessionError> {
        // What a checkpoint holds of precision may be there or not: a training may go on in another one.
        let always = self.state().into_iter().filter(|n| !n.fqn.starts_with(precision::STATE));
        let wanted: Vec<_> = always.map(|n| (n.fqn, n.tensor.size(), n.tensor.kind())).collect();
        let saved = checkpoint::load_with(folder, &wanted, &[precision::STATE])?;
        self.precision.restore(&saved)?;
        let weights = self.weights.views(self.weights.slabs());
        // Refused steps are not in the optimizer's count.
        let taken = weights.first().and_then(|(name, _)| saved.get(&format!("optim.state.{name}.step")));
        let taken = taken.map_or(Ok(steps as f64), |taken| taken.f_double_value(&[]))? as u64;
        self.replay_state.seen = steps.saturating_sub(taken);
        self.optimizer.restore(&self.weights, &saved, taken, self.replay_state.seen)?;
        for (name, mut view) in weights {
            tch::no_grad(|| view.f_copy_(&saved[&format!("model.{name}")]))?;
        }
        Ok(self.params.refresh_shadows()?)
    }

    /// Whether a step was refused since the last look, and a replay is worth its time. Waits for the device.
    fn is_refused(&mut self) -> Result<bool, OptimError> {
        let skipped = self.optimizer.skipped()?;
        let refused = skipped > std::mem::replace(&mut self.replay_state.seen, skipped);
        if !refused {
            self.replay_state.fruitless = 0;
        }
        Ok(refused && self.replay_state.fruitless < REPLAYS_MAX)
    }

    /// Makes a refused step once more, and keeps what it finds. A kernel that is at fault is in quarantine on this rank then.
    fn explain<E: From<OpError>>(
        &mut self,
        given: &Given,
        code: &mut impl FnMut(&Cx<'_>, &StepParts<'_>, &[Tensor]) -> Result<Vec<Tensor>, E>,
    ) {
        let found = self.replay(given, code);
        self.replay_state.fruitless = match &found {
            Some(found) if found.is_of_a_kernel() => 0,
            _ => self.replay_state.fruitless + 1,
        };
        let Some(found) = found else { return };
        // Nothing runs in another precision because of it: ranks would have to agree.
        let found = NonfiniteCause { low: None, ..found };
        let cause =
            found.sentence(&self.params, given.number, &BTreeSet::new()).unwrap_or_else(|error| error.sentence());
        tracing::warn!("{cause}");
        self.replay_state.cause = Some(cause);
    }

    fn replay<E: From<OpError>>(
        &self,
        given: &Given,
        code: &mut impl FnMut(&Cx<'_>, &StepParts<'_>, &[Tensor]) -> Result<Vec<Tensor>, E>,
    ) -> Option<NonfiniteCause> {
        let Self { params, weights, kernels, grads, optimizer, precision, uncompared, .. } = self;
        let bisect = Bisect::new(kernels);
        let replay = Replay::default();
        let collectives = &Unasked(1);
        let parts = StepParts { weights, grads, optimizer, precision, collectives, uncompared, replay: Some(&replay) };
        let mut cx = Cx::train(params, self.seed, given.number);
        cx.set_launcher(&bisect);
        cx.set_collectives(collectives);
        let mut run = || -> Result<Vec<Tensor>, E> {
            precision.enter(&cx)?;
            cx.clear_gradients();
            let inputs: Vec<Tensor> = given.inputs.iter().map(|raw| cx.input(raw.shallow_clone())).collect();
            code(&cx, &parts, &inputs)
        };
        let _ends_in_an_error = run();
        if !replay.ended.get() {
            tracing::warn!(step = given.number, "a refused step could not be made once more");
            return None;
        }
        let ends = replay.ends.take();
        let found = NonfiniteCause::of(&cx, &bisect, &ends)?;
        // Where the loss is finite, a gradient may have been too large for the loss scale only, which was halved.
        let backward = ends.iter().any(|end| end.backward.contains(&found.finding.record));
        let scaled = precision.scale.is_some() && backward && !found.is_of_a_kernel();
        (!scaled).then_some(found)
    }
}

/// Exchanges faults between all ranks: each fault once, in the same order on every rank.
fn exchange_faults(
    group: &dyn ProcessGroup,
    device: Device,
    mine: &[KernelFault],
) -> Result<Vec<KernelFault>, SessionError> {
    let mine = if mine.is_empty() { Vec::new() } else { serde_json::to_vec(mine).map_err(unexpected)? };
    let mut all: Vec<KernelFault> = Vec::new();
    for faults in agree::exchange(group, device, &mine)?.iter().filter(|faults| !faults.is_empty()) {
        for fault in serde_json::from_slice::<Vec<KernelFault>>(faults).map_err(unexpected)? {
            if !all.contains(&fault) {
                all.push(fault);
            }
        }
    }
    Ok(all)
}

/// The error for faults of another rank that this build cannot read.
fn unexpected(error: serde_json::Error) -> SessionError {
    SessionError::Unexpected {
        found: error.to_string(),
        expected: "the faults of kernels that a rank of the same build saw",
    }
}

/// Whether the last step was refused cannot be read.
fn unread(error: OptimError) -> OpError {
    OpError { op: "adamw", place: "top".to_owned(), kind: Box::new(OpErrorKind::Hook(error.into())) }
}

impl StepParts<'_> {
    /// Adds the gradients of `loss`, a sum. With `last`, those of the last micro-batch, they travel to the other ranks while
    /// backward goes on.
    pub fn backward(&self, cx: &Cx<'_>, loss: &Tensor, last: bool) -> Result<(), OpError> {
        self.compare(cx)?;
        let before = cx.with_program(|program| program.recs().len());
        cx.backward(loss, self.grads, &mut |_, gradient| {
            if last {
                cx.all_reduce(gradient)?;
            }
            Ok(())
        })?;
        if let Some(replay) = self.replay {
            replay.note(cx, loss, before);
        }
        Ok(())
    }

    /// That all ranks recorded the same before the first gradient travels: else some would wait for sums that never come.
    fn compare(&self, cx: &Cx<'_>) -> Result<(), OpError> {
        let Some((rank, device)) = self.uncompared.get().filter(|_| self.collectives.ranks() > 1) else {
            return Ok(());
        };
        self.uncompared.set(None);
        let mine = agree::short_digest(cx.with_program(Program::structure_hash).as_bytes());
        let gather = || -> Result<Vec<i64>, HookError> {
            let mut slots = vec![0; self.collectives.ranks() as usize];
            *slots
                .get_mut(rank as usize)
                .ok_or("the collectives of a step are those of fewer ranks than the place's")? = mine;
            let slots = Raw::f_from_slice(&slots)?.f_to_device(device)?;
            self.collectives.all_reduce(&slots)?;
            self.collectives.wait()?;
            Ok(Vec::<i64>::try_from(slots.f_to_device(Device::Cpu)?)?)
        };
        let all = gather().map_err(|error| cx.fail("all_reduce", OpErrorKind::Hook(error)))?;
        let compared = agree::compare("recorded program", &all);
        compared.map_err(|error| cx.fail("backward", OpErrorKind::Hook(error.to_string().into())))
    }

    /// Waits for everything begun, the sums of the gradients among it; their norm, f64 of 0 axes, for [`StepParts::optimize`].
    pub fn complete(&self, cx: &Cx<'_>) -> Result<Tensor, OpError> {
        if let Some(replay) = self.replay {
            return Err(replay.end(cx));
        }
        cx.clear_stale_gradients(self.grads)?;
        self.optimizer.complete(cx, self.grads)
    }

    /// Updates the weights with gradients that [`StepParts::complete`] waited for: clip, AdamW, loss scale. `norm` is what it gave,
    /// `count` what the summed loss is divided by, over all ranks; `rate` the learning rate. All f64, 0 axes. An `average` takes in the
    /// new weights in the same pass over them.
    pub fn optimize(
        &self,
        cx: &Cx<'_>,
        norm: &Tensor,
        count: &Tensor,
        rate: &Tensor,
        average: Option<&Ema>,
    ) -> Result<StepStats, OpError> {
        if let Some(replay) = self.replay {
            return Err(replay.end(cx));
        }
        let update = WeightUpdate { optimizer: self.optimizer, grads: self.grads, average };
        self.precision.optimize(cx, &update, norm, count, rate)
    }
}
