//! One optimizer step: forward and backward over the micro-batches, gradients added over the ranks while backward still
//! runs, update, average. Everything is recorded.
//!
//! The step reads nothing back from the device. It does wait: once a step, between backward and update, the host waits until the ranks'
//! sums have come, on a device too ([`Collectives::wait`]). A sum that was cut must never change weights, or a round that breaks
//! would not leave whole steps. While it waits the device is at work, so that what is lost is the launch of the update.

use super::step_flags::{StepFlags, StepSums};
use crate::session::learner::{Learner, Parts};
use crate::session::{
    SessionError, agree::agree, clock::Stopwatch, kernels::Kernels, precision::WeightUpdate, report::Reporter,
};
use crate::{collective::COLLECTIVE_WAIT_MAX, data::Batch};
use enn_comm::{Pending, ProcessGroup, sharing};
use enn_common::{event::StepTimes, wire::control::Phase};
use enn_core::autograd::{BucketId, Cx, Mode, Phase as Part, Program, Request, Tensor};
use enn_core::{
    backend::copier::Copier, backend::graph, error::HookError, functional, op::collective::Collectives,
    profile::Profile,
};
use enn_model::loss::BatchLoss;
use std::cell::{Cell, RefCell};
use tch::{Device, Kind, Tensor as Raw};

pub struct StepContext<'a> {
    pub group: &'a dyn ProcessGroup,
    pub reporter: &'a dyn Reporter,
    pub kernels: &'a Kernels<'a>,
    pub device: Device,
    pub seed: u64,
    pub accumulation: u64,
    /// Where this rank's share begins in the global batch.
    pub first_row: u64,
    /// A checkpoint is due because the last one is too old.
    pub save: bool,
    /// A step pauses before it changes the state, also that of a rank alone: there it may have to hold.
    pub holds: bool,
    /// The device copies the state for a checkpoint.
    pub copying: Option<Copier>,
    /// Profile of a few steps, if one is wanted.
    pub profile: Option<&'a Profile>,
}

/// Results of a step, on the device.
pub struct Stepped {
    /// Encoded [`StepSums`] of all ranks.
    pub sums: Raw,
    /// Norm of the mean gradient before clipping.
    pub grad_norm: Raw,
    /// 1 when the step landed, 0 when it was refused.
    pub taken: Raw,
    pub lr: f64,
    /// Hash of the recorded forward pass, on request.
    pub program: Option<String>,
    pub mode: Mode,
    /// Where the time went, milliseconds; without waiting for data.
    pub times: StepTimes,
}

/// The group as a step's collectives: what was begun is kept until it is waited for.
struct Reduction<'a> {
    ctx: &'a StepContext<'a>,
    step: u64,
    pending: Pending,
    /// Sums over ranks with the same share: nothing of the backward pass waits for them.
    across: Pending,
}

impl Collectives for Reduction<'_> {
    fn ranks(&self) -> u32 {
        self.ctx.group.size()
    }

    fn pauses(&self) -> bool {
        self.ranks() > 1 || self.ctx.holds
    }

    fn flops_per_byte(&self) -> f64 {
        self.ctx.group.flops_per_byte()
    }

    fn norms_of(&self, array: &Raw) -> Option<Raw> {
        self.ctx.group.norms_of(array)
    }

    fn intact(&self) -> Result<(), HookError> {
        Ok(self.ctx.group.intact()?)
    }

    fn all_reduce(&self, tensor: &Raw) -> Result<(), HookError> {
        self.pending.keep(self.ctx.group.all_reduce_sum(tensor)?);
        Ok(())
    }

    fn copies(&self) -> u32 {
        self.ctx.group.mesh().map_or(1, |mesh| mesh.across.size())
    }

    fn all_reduce_shares(&self, tensor: &Raw) -> Result<(), HookError> {
        self.pending.keep(sharing(self.ctx.group).all_reduce_sum(tensor)?);
        Ok(())
    }

    fn all_reduce_copies(&self, tensor: &Raw) -> Result<(), HookError> {
        if let Some(mesh) = self.ctx.group.mesh() {
            self.across.keep(mesh.across.all_reduce_sum(tensor)?);
        }
        Ok(())
    }

    fn reduce_scatter(&self, whole: &Raw) -> Result<(), HookError> {
        self.pending.keep(sharing(self.ctx.group).reduce_scatter_sum(whole)?);
        Ok(())
    }

    fn all_gather(&self, whole: &Raw) -> Result<(), HookError> {
        self.pending.keep(sharing(self.ctx.group).all_gather(whole)?);
        Ok(())
    }

    fn order(&self) -> Result<(), HookError> {
        Ok(self.pending.order(COLLECTIVE_WAIT_MAX)?)
    }

    fn wait(&self) -> Result<(), HookError> {
        if self.ctx.device.is_cuda() && graph::records()? {
            // The host of a graph waits for nothing: Training::mend takes the state for lost after a cut.
            for begun in [&self.pending, &self.across] {
                begun.order(COLLECTIVE_WAIT_MAX)?;
                begun.forget();
            }
            return Ok(());
        }
        self.ctx.reporter.mark(Phase::Collective, self.step);
        // The host waits, also for a device: what follows changes weights, and a sum that was cut must not.
        self.pending.wait(COLLECTIVE_WAIT_MAX)?;
        self.across.wait(COLLECTIVE_WAIT_MAX)?;
        // The state is changed after a checkpoint of it was copied; the host goes on meanwhile.
        self.ctx.copying.as_ref().map_or(Ok(()), Copier::hold)?;
        self.ctx.reporter.mark(Phase::Compute, self.step);
        Ok(())
    }
}

/// Compares what was recorded so far with the other ranks.
type Compare<'a> = dyn Fn(&Cx<'_>) -> Result<(), SessionError> + 'a;

/// The host's clock, read where one part of the step ends and the next begins.
struct Laps<'a> {
    reporter: &'a dyn Reporter,
    watch: RefCell<Stopwatch>,
    times: Cell<StepTimes>,
}

impl Laps<'_> {
    /// Counts the time since the last call as that of `part`. However long a step takes, each part is a sign of life.
    fn end(&self, part: Part) {
        self.reporter.alive();
        let ms = self.watch.borrow_mut().lap_ms();
        let mut times = self.times.get();
        match part {
            Part::Forward => times.forward += ms,
            Part::Backward | Part::Recompute => times.backward += ms,
            Part::Comm => times.comm += ms,
            Part::Optim => times.optimizer += ms,
        }
        times.total += ms;
        self.times.set(times);
    }
}

/// Does optimizer step number `step` (from 0) with this rank's share of the global batch. `first` compares the recorded
/// programs of all ranks before the first gradient is added.
pub fn step(
    learner: &mut Learner,
    ctx: &StepContext<'_>,
    batch: &Batch,
    step: u64,
    first: bool,
) -> Result<Stepped, SessionError> {
    let watch = RefCell::new(Stopwatch::start());
    let times = Cell::default();
    let laps = Laps { reporter: ctx.reporter, watch, times };
    let lr = learner.schedule.rate(step);
    ctx.reporter.mark(Phase::Compute, step);
    let flags = StepFlags {
        stop: ctx.reporter.stop_requested(),
        quarantine: ctx.kernels.listen(step),
        leave: ctx.reporter.leave_requested(),
        save: ctx.save,
    };
    let flags = flags.encode(lr, ctx.device)?;
    let data = [&batch.x, &batch.x_mask, &batch.y, &batch.y_mask];
    let inputs = data.into_iter().map(Raw::shallow_clone).chain([flags]).collect();
    let reduction = Reduction { ctx, step, pending: Pending::default(), across: Pending::default() };
    let mut part = Part::Forward;
    let mut watch = |now: Part| {
        if now != part {
            laps.end(part);
            part = now;
        }
    };
    if learner.advance(step) {
        learner.executor.reset();
    }
    let (executor, parts) = learner.split();
    let request = Request {
        leaves: &parts.arrays.params,
        seed: ctx.seed,
        step,
        launcher: &ctx.kernels.manager,
        collectives: Some(&reduction),
        inputs,
        watch: Some(&mut watch),
        observer: ctx.profile.and_then(|profile| profile.next(step)),
    };
    let program = RefCell::new(None);
    let ran = executor.step(request, |cx, inputs| {
        let compare = |cx: &Cx<'_>| {
            let hash = cx.program_hash();
            // Which kernel ran may differ in the very step in which a rank finds one wrong.
            agree(ctx.group, ctx.device, "recorded program", cx.with_program(Program::structure_hash).as_bytes())?;
            program.replace(Some(hash));
            Ok(())
        };
        code(cx, inputs, &parts, ctx, &laps, if first { Some(&compare) } else { None })
    })?;
    laps.end(Part::Optim);
    ctx.kernels.ran(ran.mode, executor.plan().map(|plan| plan.hash()));
    let Ok([sums, grad_norm, taken]) = <[Raw; 3]>::try_from(ran.outputs) else {
        unreachable!("the code of a step gives three values");
    };
    let program = program.into_inner();
    let times = laps.times.get();
    Ok(Stepped { sums, grad_norm, taken, lr, program, mode: ran.mode, times })
}

pub(crate) fn loss(
    cx: &Cx<'_>,
    batch: [&Tensor; 4],
    learner: &Parts<'_>,
    ctx: &StepContext<'_>,
    micro: u64,
) -> Result<BatchLoss, SessionError> {
    let [x, x_mask, y, y_mask] = batch;
    let slots = x.dim(0) / ctx.accumulation.cast_signed();
    let cut = |t: &Tensor| functional::narrow(cx, t, 0, micro.cast_signed() * slots, slots);
    // Dropout follows the rows of the global batch, so that it is the same in every world.
    cx.set_rows(ctx.first_row + micro * slots.cast_unsigned(), slots.cast_unsigned());
    let output = learner.model.forward(cx, &cut(x)?, &cut(x_mask)?)?;
    let targets = learner.model.targets(cx, &cut(y)?, &cut(y_mask)?)?;
    Ok(learner.objective.forward(cx, &output, &targets)?)
}

/// Computes a step: the encoded sums, the norm of the gradient, whether the step was taken.
fn code(
    cx: &Cx<'_>,
    inputs: &[Tensor],
    learner: &Parts<'_>,
    ctx: &StepContext<'_>,
    laps: &Laps<'_>,
    compare: Option<&Compare<'_>>,
) -> Result<Vec<Tensor>, SessionError> {
    let [x, x_mask, y, y_mask, flags] = inputs else {
        unreachable!("a step was given five inputs");
    };
    learner.precision.enter(cx)?;
    cx.set_recompute(learner.recompute);
    learner.sharding.zero_grads(cx, learner.arrays)?;
    let mut sums: Option<[Tensor; 2]> = None;
    let mut control = None;
    for micro in 0..ctx.accumulation {
        let last = micro + 1 == ctx.accumulation;
        let loss = loss(cx, [x, x_mask, y, y_mask], learner, ctx, micro)?;
        let wide = functional::cast(cx, &functional::detach(cx, &loss.sum)?, Kind::Double)?;
        let [sum, count] = match sums.take() {
            None => [wide, loss.count],
            Some([sum, count]) => [functional::add(cx, &sum, &wide)?, functional::add(cx, &count, &loss.count)?],
        };
        if let (Some(compare), 0) = (compare, micro) {
            compare(cx)?;
        }
        laps.end(Part::Forward);
        if last {
            let all = StepFlags::with_loss(cx, flags, &sum, &count)?;
            cx.all_reduce_value(&all)?;
            control = Some(all);
        }
        let mut reduce = |bucket: BucketId, gradient: &Raw| {
            learner.sharding.reduce_grads(cx, learner.arrays, bucket, gradient, last)
        };
        cx.backward(&loss.sum, &learner.arrays.grads, &mut reduce)?;
        cx.accumulate_reduced(&learner.arrays.grads, last)?;
        laps.end(Part::Backward);
        sums = Some([sum, count]);
    }
    let Some(control) = control else { unreachable!("a step has at least one micro-batch") };
    cx.reshard_parameters()?;
    let norm = learner.arrays.optimizer.complete(cx, &learner.arrays.grads)?;
    laps.end(Part::Comm);
    let count = StepSums::cells_of(cx, &control)?;
    let rate = StepFlags::rate(cx, flags)?;
    // One average moves in the pass over the weights.
    let mut averages = learner.averages.into_iter().flatten();
    let update =
        WeightUpdate { optimizer: &learner.arrays.optimizer, grads: &learner.arrays.grads, average: averages.next() };
    let stats = learner.precision.optimize(cx, &update, &norm, &count, &rate)?;
    for average in averages {
        average.update(cx, &learner.arrays.weights, &stats.taken)?;
    }
    Ok(vec![control, stats.grad_norm, stats.taken])
}
