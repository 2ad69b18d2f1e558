//! One round of training: the ranks of a process group come to the same state, and take steps until training is over, they are
//! all asked to leave, or a collective breaks.
//!
//! Imports everything of the session up to `eval` and `recovery`; knows neither the launcher's orders nor what comes before and after.
//!
//! **Invariant:** what a round leaves behind is whole: weights, progress and sums of the same number of steps, also when it ends
//! in an error. Where the ranks share the state, each is left with a whole share, or says that it is not.

pub(crate) mod context;
mod ending;
mod entering;
pub(crate) mod ledger;
pub(crate) mod micro_batch;
pub mod nonfinite_step;
pub(crate) mod pace;
mod saving;
pub(crate) mod state;
pub mod step;
pub mod step_flags;
pub mod task;

use super::{
    SessionError, decide, eval::evaluate::EVALUATION_ROWS, learner::Learner, memory::portion::Portion, nonfinite_cause,
};
use crate::collective::COLLECTIVE_WAIT_MAX;
use crate::data::{Batch, Position, Prefetch, Sampler};
use context::TrainContext;
use enn_comm::{ProcessGroup, Solo};
use enn_common::{
    config::train::Recompute, event::EpochReport, ledger::Line, staged::Split, wire::control::Phase,
    wire::message::FromWorker,
};
use micro_batch::MicroBatchPlan;
use nonfinite_step::Rows;
use state::TrainState;
use std::collections::BTreeMap;
use step::{StepContext, Stepped};
use step_flags::StepSums;
use task::{Ended, RoundTask};
use tch::Device;

/// Rows that a spare rehearses with on a device, at most.
const REHEARSED_ROWS_MAX: u64 = 8;
/// Rows that it computes at once on a CPU, at most, where memory decides: what fits is measured when it has a seat.
const REHEARSED_AT_ONCE_MAX: u64 = 256;
/// On a device the flags are read every so many steps: reading waits for the device.
const DEVICE_LOOK_EVERY: u64 = 8;

pub(super) struct Round<'a> {
    training: &'a TrainContext<'a>,
    state: &'a mut TrainState,
    ctx: StepContext<'a>,
    sampler: Sampler,
    task: &'a RoundTask,
    /// Nobody had any state when it began.
    fresh: bool,
    /// The epoch whose weights this round calibrated.
    calibrated: Option<u64>,
}

/// Request to all ranks that takes effect after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AfterStep {
    Continue,
    StopRun,
    LeaveRound,
}

impl Round<'_> {
    pub(super) fn run(mut self) -> Result<Ended, SessionError> {
        let ended = self.run_steps();
        // However the round ended, its checkpoints are reported.
        let settled = self.settle();
        ended.and_then(|ended| settled.map(|()| ended))
    }

    fn run_steps(&mut self) -> Result<Ended, SessionError> {
        let epochs = self.training.config.train.epochs;
        // A round that broke may have left weights to be validated, or a checkpoint of which some ranks wrote their share.
        if self.state.progress.owes_validation() {
            // Nobody has saved since; a share that is written twice spoils the checkpoint.
            self.validate_if_owed()?;
            if self.state.progress.due == self.state.progress.step {
                self.save(true)?;
            }
        } else {
            self.save_if_owed()?;
        }
        if self.task.saves_only && !self.state.progress.finished {
            self.save(true)?;
            return Ok(Ended::Finished(self.state.outcome(true, BTreeMap::new())));
        }
        if !self.state.progress.finished && self.state.progress.position.epoch < epochs {
            self.settle()?;
            self.plan_micro_batches()?;
            let prefetch = Prefetch::start(self.training.plan(self.sampler.clone()), self.state.progress.position)?;
            let mut first = true;
            while !self.state.progress.finished {
                let then = self.step(&prefetch, first)?;
                first = false;
                self.validate_if_owed()?;
                match then {
                    _ if self.state.progress.finished => {}
                    // After a validation it may be there.
                    AfterStep::Continue if self.state.progress.due == self.state.progress.step => self.save(false)?,
                    AfterStep::Continue => {}
                    AfterStep::StopRun => {
                        self.save(true)?;
                        return Ok(Ended::Finished(self.state.outcome(true, BTreeMap::new())));
                    }
                    AfterStep::LeaveRound => {
                        self.settle()?;
                        self.state.learner.gather(self.ctx.group)?;
                        return Ok(Ended::Left);
                    }
                }
            }
        }
        self.end()
    }

    /// Cuts the shares of the batch by what fits into memory, unless the configuration says how.
    fn plan_micro_batches(&mut self) -> Result<(), SessionError> {
        let training = self.training;
        let state = &mut *self.state;
        if training.config.train.accumulation > 0 {
            return Ok(());
        }
        state.learner.unshard(self.ctx.group)?;
        let plan = self.measure_micro_batches()?;
        let state = &mut *self.state;
        state.learner.reshard()?;
        let news = self.fresh || (state.accumulation, state.learner.recompute) != (plan.accumulation, plan.recompute);
        state.accumulation = plan.accumulation;
        state.learner.recompute = plan.recompute;
        state.portion = Portion::of(plan.eval_rows.min(EVALUATION_ROWS));
        let accumulation = plan.accumulation * u64::from(self.task.split.max(1));
        self.sampler.accumulation = accumulation;
        self.ctx.accumulation = accumulation;
        let batch = self.sampler.batch;
        let micro = self.sampler.micro_slots();
        let recompute = plan.recompute;
        let message = FromWorker::BatchChosen { batch, micro, accumulation, recompute, reason: plan.reason };
        if !news {
            return Ok(());
        }
        let rows = self.state.portion.rows();
        if rows < EVALUATION_ROWS {
            let decision = format!("weights are judged on {rows} rows at a time: more may not fit");
            self.tell_from_first(FromWorker::Decided { decision })?;
        }
        self.tell_from_first(message)
    }

    /// How all ranks compute their shares: as the one with the least memory can. Measured once for each size of a share, on the first
    /// rows it is to compute. One collective.
    fn measure_micro_batches(&mut self) -> Result<MicroBatchPlan, SessionError> {
        let training = self.training;
        let state = &mut *self.state;
        let whole = Sampler { accumulation: 1, ..self.sampler.clone() };
        if state.plan.as_ref().is_none_or(|plan| plan.share != whole.slots()) {
            let index = training.data.rows(Split::Train);
            let ordinals = whole.share(state.progress.position).ordinals;
            let rows: Vec<u64> = ordinals.into_iter().map(|ordinal| index.at(ordinal)).collect();
            let batch = training.data.gather_rows(&rows, training.device)?;
            state.excluded.leave_out_of(&batch)?;
            let (_, parts) = state.learner.split();
            state.plan =
                Some(micro_batch::measure(&training.config.train, &parts, &self.ctx, &batch, self.task.local)?);
        }
        let Some(own) = &state.plan else { unreachable!("it was just measured") };
        micro_batch::agree(own, &self.ctx)
    }

    /// Does one optimizer step, and returns what all ranks do after it.
    fn step(&mut self, prefetch: &Prefetch, first: bool) -> Result<AfterStep, SessionError> {
        let training = self.training;
        let state = &mut *self.state;
        let _ = state.pace.watch.lap_ms();
        let batch = prefetch.next(state.progress.position)?;
        let waited = state.pace.watch.lap_ms();
        state.excluded.leave_out_of(&batch)?;
        // What it costs to ask for the copy is not waiting: the device still computes the step before.
        let batch = batch.to_device(training.device)?;
        if first && training.config.train.accumulation > 0 {
            state.learner.unshard(self.ctx.group)?;
            let (_, parts) = state.learner.split();
            state.learner.recompute = micro_batch::recompute(&training.config.train, &parts, &self.ctx, &batch)?;
            state.learner.reshard()?;
            if state.learner.recompute && training.config.train.recompute == Recompute::Auto {
                let rows = self.sampler.micro_slots();
                let decision = format!("activations are computed again: those of {rows} rows may not fit");
                self.tell_from_first(FromWorker::Decided { decision })?;
            }
        }
        self.log_begun(&batch)?;
        self.ctx.save = self.ctx.group.rank() == 0 && self.state.saver.alarm.rings();
        self.ctx.copying = self.state.saver.copying();
        let mut done = self.compute_step(&batch, first)?;
        let state = &mut *self.state;
        state.saver.settle(false, self.ctx.reporter)?;
        state.sums.add(&StepSums::loss_and_cells_of(&done.sums)?, &done.grad_norm, &done.taken)?;
        state.progress.step += 1;
        state.progress.position = self.sampler.after(state.progress.position);
        if decide::save_due(state.progress.step, training.config.train.checkpoint_every_steps) {
            state.progress.due = state.progress.step;
        }
        self.ctx.reporter.mark(Phase::Compute, state.progress.step);
        let round = self.task.round;
        let attempt = self.task.attempt.clone();
        self.log_rows(|| Line::Done { done: self.state.progress.step, round, attempt })?;
        let state = &mut *self.state;
        let is_due = training.device == Device::Cpu || state.progress.step.is_multiple_of(DEVICE_LOOK_EVERY);
        let then = if is_due { self.read_flags(&done)? } else { AfterStep::Continue };
        done.times.data = waited;
        let state = &mut *self.state;
        self.ctx.reporter.waited(self.ctx.group.waited());
        let total = waited + state.pace.watch.lap_ms();
        state.pace.note(&done.times, total, batch_samples(&self.sampler, state.progress.position.step));
        if first {
            // The step is done when it is done everywhere: a newcomer's takes longest.
            self.ctx.group.barrier(COLLECTIVE_WAIT_MAX)?;
        }
        if let Some(hash) = done.program.as_ref().filter(|_| self.fresh) {
            self.tell_model(hash)?;
        }
        if self.ctx.group.rank() == 0 && self.state.pace.throttle.due() {
            self.tell_step(&done)?;
        }
        Ok(then)
    }

    /// Reads the numbers for which the device is waited: requests, kernels that all ranks know of, refused steps.
    fn read_flags(&mut self, done: &Stepped) -> Result<AfterStep, SessionError> {
        let sums = StepSums::decode(&done.sums)?;
        // Before anything that may break the round: every rank that did this step owes the checkpoint.
        if sums.save > 0.0 {
            self.state.progress.due = self.state.progress.step;
        }
        self.ctx.kernels.agree(sums.quarantine, self.ctx.group.size());
        self.explain()?;
        Ok(match (sums.stop > 0.0, sums.leave > 0.0) {
            (true, _) => AfterStep::StopRun,
            (false, true) => AfterStep::LeaveRound,
            (false, false) => AfterStep::Continue,
        })
    }

    /// Computes a step. On the CPU one that was refused because of rows is computed again without them.
    fn compute_step(&mut self, batch: &Batch, first: bool) -> Result<Stepped, SessionError> {
        let mut program = None;
        loop {
            let state = &mut *self.state;
            let step = state.progress.step;
            let position = state.progress.position;
            let mut done = step::step(&mut state.learner, &self.ctx, batch, step, first && program.is_none())?;
            let sound = state.learner.precision.sound(&done.taken, &StepSums::loss_of(&done.sums)?)?;
            state.nonfinite.note((step, position), batch, &sound);
            program = program.or(done.program.take());
            // A device is asked when it is waited for anyway.
            if self.training.device != Device::Cpu || !self.explain()? {
                return Ok(Stepped { program, ..done });
            }
            self.state.excluded.leave_out_of(batch)?;
        }
    }

    /// Explains refused steps that were not looked at yet, and returns whether rows are left out from now on. Waits for the device.
    fn explain(&mut self) -> Result<bool, SessionError> {
        let training = self.training;
        let state = &mut *self.state;
        let data = Rows { order: &self.sampler, ids: training.data.ids() };
        let explained = state.nonfinite.explain(&mut state.learner, &self.ctx, &data)?;
        self.ctx.kernels.tell_news()?;
        if let Some(message) = explained.message {
            self.tell(FromWorker::Warned { message })?;
        }
        if let Some(reason) = self.state.learner.executor.new_fallback_reason() {
            self.tell_from_first(FromWorker::Warned {
                message: format!("steps are not replayed as they could be: {reason}"),
            })?;
        }
        let Some((step, position)) = explained.at.filter(|_| !explained.left_out.is_empty()) else { return Ok(false) };
        let global = self.sampler.global(position);
        let index = training.data.rows(Split::Train);
        let rows: Vec<u64> = explained.left_out.iter().map(|&place| index.at(global[place])).collect();
        self.state.excluded.add(rows.iter().copied());
        let id = |row: &u64| data.ids[*row as usize];
        let left_out = rows.iter().map(id).collect();
        self.log_rows(|| Line::LeftOut { left_out, step: step + 1, round: self.task.round })?;
        let found = self.state.excluded.count();
        let limit = training.config.train.poisoned_rows_limit(index.len());
        if found > limit {
            let first = nonfinite_cause::first_of(self.state.excluded.rows().iter().map(id));
            return Err(SessionError::TooManyExcludedRows { found, limit, first });
        }
        Ok(true)
    }

    /// Into the ledger, before this rank contributes to a step.
    fn log_begun(&self, batch: &Batch) -> Result<(), SessionError> {
        let ids = self.training.data.ids();
        let progress = &self.state.progress;
        self.log_rows(|| Line::Begun {
            round: self.task.round,
            attempt: self.task.attempt.clone(),
            step: progress.step + 1,
            epoch: progress.position.epoch + 1,
            rank: self.ctx.group.rank(),
            rows: batch.rows[..batch.real].iter().map(|&row| ids[row as usize]).collect(),
        })
    }

    /// A line of the ledger, where there is one.
    fn log_rows(&self, line: impl FnOnce() -> Line) -> Result<(), SessionError> {
        match self.training.ledger.as_ref().and_then(|ledger| ledger.write(&line())) {
            Some(message) => self.tell(FromWorker::Warned { message }),
            None => Ok(()),
        }
    }

    /// Validation, judgement, report and, when due at an epoch's end, a checkpoint; once for every step that owes it.
    fn validate_if_owed(&mut self) -> Result<(), SessionError> {
        if !self.state.progress.owes_validation() {
            return Ok(());
        }
        let train = &self.training.config.train;
        let Position { epoch, step: begun } = self.state.progress.position;
        let ends = begun == 0;
        let sums = self.state.sums.read()?;
        if ends && sums.landed == 0.0 {
            return Err(SessionError::Diverged { epoch, steps: sums.skipped as u64 });
        }
        self.ctx.reporter.mark(Phase::Validate, self.state.progress.step);
        let measured = self.with_weights(Learner::swap_average, |round| round.measure_validation())?;
        let error = self.validation_error(&measured);
        let (early_stopping, verdict) =
            decide::early_stopping(self.state.progress.early_stopping, error, train.patience);
        let finished = verdict.stop || (ends && epoch >= train.epochs);
        let tail = if finished { self.measure_tail()? } else { None };
        let state = &mut *self.state;
        if verdict.best {
            state.progress.best_step = state.progress.step;
        }
        state.progress.early_stopping = early_stopping;
        state.progress.stopped_early = verdict.stop;
        state.progress.finished = finished;
        state.progress.validated = state.progress.step;
        state.progress.mean_won = false;
        state.keep_validated_as_best()?;
        let report = EpochReport {
            epoch: epoch + u64::from(!ends),
            part: if ends { 1.0 } else { begun as f64 / self.sampler.steps_per_epoch() as f64 },
            step: state.progress.step,
            train_loss: sums.loss / sums.cells,
            val: measured.metrics,
            best: verdict.best,
            lr: state.learner.schedule.rate(state.progress.step.saturating_sub(1)),
            grad_norm: sums.grad_norm / sums.landed,
            gate_mean: measured.gate_mean,
            reactivity: measured.reactivity,
            step_ms: state.pace.epoch_mean(),
            samples_per_s: state.pace.rate(),
            skipped: sums.skipped as u64,
        };
        if ends {
            state.progress.skipped += sums.skipped as u64;
            state.sums.clear()?;
            state.pace.begin_epoch();
        }
        self.tell_from_first(FromWorker::EpochEnded(Box::new(report)))?;
        if self.ctx.group.rank() == 0 {
            self.ctx.kernels.tell_calls()?;
        }
        if finished {
            self.choose_kept_weights(tail)?;
        }
        if finished || (ends && decide::save_due(epoch, train.checkpoint_every)) {
            self.save(finished)?;
        }
        Ok(())
    }

    fn tell(&self, message: FromWorker) -> Result<(), SessionError> {
        Ok(self.ctx.reporter.send(message)?)
    }

    fn tell_from_first(&self, message: FromWorker) -> Result<(), SessionError> {
        if self.ctx.group.rank() == 0 { self.tell(message) } else { Ok(()) }
    }

    fn tell_model(&self, hash: &str) -> Result<(), SessionError> {
        let learner = &self.state.learner;
        let rows = self.sampler.micro_slots();
        let cells = learner.model.grid().cells();
        let tiles = learner.objective.tiles(rows.cast_signed(), cells).len();
        if tiles > 1 {
            let decision = format!(
                "the loss of {rows} rows of {cells} cells is computed in {tiles} tiles, each a second time for its gradient: what it needs \
                 in between is that of one tile"
            );
            self.tell_from_first(FromWorker::Decided { decision })?;
        }
        let steps_per_epoch = self.sampler.steps_per_epoch();
        self.tell_from_first(FromWorker::ModelBuilt {
            parameters: self.state.learner.arrays.params.numel() as u64,
            program_hash: hash.to_owned(),
            batch: self.sampler.batch,
            steps_per_epoch,
            steps_total: self.training.config.train.epochs * steps_per_epoch,
        })
    }

    fn tell_step(&mut self, done: &Stepped) -> Result<(), SessionError> {
        let sums = StepSums::decode(&done.sums)?;
        let progress = &self.state.progress;
        let message = FromWorker::Stepped {
            epoch: progress.position.epoch + u64::from(progress.position.step > 0),
            step: progress.step,
            loss: sums.loss / sums.cells,
            lr: done.lr,
            grad_norm: done.grad_norm.f_double_value(&[])?,
            samples_per_s: self.state.pace.rate_since_report(),
        };
        self.tell(message)
    }
}

/// Does a step on weights that are thrown away (see [`super::train::Training::rehearse`]).
pub(super) fn rehearse(training: &TrainContext<'_>, state: &mut TrainState, world: u32) -> Result<(), SessionError> {
    let group: &dyn ProcessGroup = &Solo;
    let mut sampler = Sampler { world: u64::from(world.max(1)), ..training.order.clone() };
    if training.device != Device::Cpu {
        // Another worker may be computing on this device: no more memory than libraries and kernels need.
        sampler.world = sampler.world.max(sampler.batch.div_ceil(REHEARSED_ROWS_MAX));
    }
    if training.config.train.accumulation == 0 {
        sampler.accumulation = sampler.micro_slots().div_ceil(REHEARSED_AT_ONCE_MAX);
    }
    state.learner.take_precision(training.precision(&sampler, group)?)?;
    state.learner.arrays.allocate()?;
    let ctx = training.step_context(group, &sampler);
    let plan = training.plan(sampler);
    let batch = Prefetch::start(plan, Position::default())?.next(Position::default())?.to_device(training.device)?;
    // A whole step, so that every kernel has run: it changes this learner, and another takes its place.
    training.kernels.manager.untimed(|| step::step(&mut state.learner, &ctx, &batch, 0, false))?;
    state.learner = training.learner()?;
    Ok(())
}

/// Samples of the global batch just done; `next` is the step of the epoch that comes now.
fn batch_samples(sampler: &Sampler, next: u64) -> u64 {
    match next {
        0 => sampler.rows - (sampler.steps_per_epoch() - 1) * sampler.batch,
        _ => sampler.batch,
    }
}
