//! Messages of workers.

use super::{
    effect::{Effect, PredictedChunk},
    limits::WARNINGS_MAX,
    machine::{SpareStarts, Supervisor},
    open_step::{ReportedShard, ShardReport, Snapshot},
    phase::Phase,
    round::DamagedCheckpoint,
    settings::RunJob,
    worker_table::{WorkDone, WorkerPlace},
};
use enn_common::{
    event::EventKind,
    id::{Rank, Round, WorkerId},
    wire::{
        message::{FromWorker, StagedShard},
        node_agent::{NodeCommand, StateShare},
    },
};

impl Supervisor {
    /// A worker sent a message, in the round that it had entered.
    pub(super) fn worker_message(&mut self, id: WorkerId, said_in: Option<Round>, message: FromWorker) {
        let Some(worker) = self.workers.get(id) else { return };
        let is_now = said_in == Some(self.round.number);
        let seat_round = worker.seat().map(|seat| seat.round);
        // A spare has the index for which it is prepared.
        let rank = worker.rank().unwrap_or(Rank(worker.slot.index.0));
        match message {
            // Handled by the broker.
            FromWorker::Hello { .. } => {}
            FromWorker::Warned { message } => self.worker_warned(id, rank, &message),
            FromWorker::Failed { error } => self.worker_failed(id, rank, error),
            FromWorker::Lasting => self.budget.lasting |= is_now,
            FromWorker::Done { stopped } => {
                let at = self.now;
                self.workers.edit(id, |worker| _ = worker.done.get_or_insert(WorkDone { at, stopped }));
                self.recovered();
            }
            FromWorker::Entered { round } => {
                let entered = Round(round) == self.round.number;
                self.workers.edit(id, |worker| worker.entered |= entered);
            }
            FromWorker::Warm => self.worker_warm(id),
            FromWorker::BatchParts { parts } => self.parts_told(parts),
            FromWorker::Halted { round, step, kept } => match seat_round {
                // It lost its seat before it entered, and has loaded everything since.
                None => self.worker_warm(id),
                Some(seat) if seat == Round(round) => self.worker_halted(id, step, kept),
                Some(_) => {}
            },
            FromWorker::ShareKept { round, share, of } if seat_round == Some(Round(round)) => {
                let share = Some(StateShare { index: share, of });
                self.workers.edit(id, |worker| worker.seat_mut().into_iter().for_each(|seat| seat.share = share));
            }
            FromWorker::ShareKept { .. } => {}
            FromWorker::KernelFaulted(fault) => self.kernel_faulted(rank, *fault),
            FromWorker::KernelRecovered { op, kernel, sig, step } => {
                if let Some(entry) = self.kernels.book.recover(&op, &kernel, sig, step).cloned() {
                    self.write_kernels();
                    self.journal(EventKind::KernelRecovered { rank, entry: Box::new(entry) });
                }
            }
            FromWorker::KernelsRan(ops) => {
                self.kernels.book.ran(ops);
                self.write_kernels();
            }
            FromWorker::ShardStaged(shard) => self.shard_staged(id, rank, is_now, *shard),
            // What was said in a round that is over is of no interest.
            message => {
                if is_now {
                    self.round_message(id, rank, message);
                }
            }
        }
    }

    /// A rank wrote its shard of a checkpoint.
    fn shard_written(&mut self, id: WorkerId, report: ShardReport) {
        if self.counts_shards(id) {
            self.ledger.reported(report, self.now);
        }
    }

    /// A rank could not write its shard.
    fn shard_failed(&mut self, id: WorkerId, rank: Rank, step: u64, error: &str) {
        if self.counts_shards(id) {
            self.ledger.failed(rank.0, step, error);
        }
    }

    fn counts_shards(&self, id: WorkerId) -> bool {
        self.phase.is_under_way() && self.workers.get(id).is_some_and(|worker| worker.seat().is_some())
    }

    /// A worker left its shard of a checkpoint in memory.
    fn shard_staged(&mut self, id: WorkerId, rank: Rank, is_now: bool, shard: StagedShard) {
        let Some(node) = self.workers.get(id).map(|worker| worker.slot.node) else { return };
        let StagedShard { step, epoch, dir, metric, ticket, blocked, must, .. } = shard;
        if is_now && self.counts_shards(id) {
            let shard = ReportedShard::InMemory(Snapshot { node, worker: id, ticket, must });
            let report = ShardReport { rank: rank.0, step, epoch, dir, metric, blocked, shard };
            self.ledger.reported(report, self.now);
        } else {
            self.send(node, NodeCommand::ReleaseSnapshot { worker: id, ticket });
        }
    }

    fn worker_failed(&mut self, id: WorkerId, rank: Rank, error: String) {
        self.workers.edit(id, |worker| _ = worker.error.get_or_insert_with(|| error.clone()));
        let seat = self.workers.get(id).and_then(|worker| worker.seat());
        if seat.is_some() {
            self.journal(EventKind::WorkerFailed { round: self.round.number, rank, error });
            self.fail_living(id);
        } else {
            self.send_away(id);
        }
    }

    fn worker_warned(&mut self, id: WorkerId, rank: Rank, message: &str) {
        let count = self.workers.edit(id, |worker| {
            worker.warnings = worker.warnings.saturating_add(1);
            worker.warnings
        });
        match count {
            Some(count) if count < WARNINGS_MAX => self.warn(format!("rank {rank}: {message}")),
            Some(WARNINGS_MAX) => self.warn(format!("rank {rank}: {message} (its further warnings are left out)")),
            Some(_) | None => {}
        }
    }

    /// A process without a seat has loaded everything.
    fn worker_warm(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get(id) else { return };
        let is_new = !worker.warm && worker.place == WorkerPlace::Spare;
        let pid = worker.pid.unwrap_or(0);
        let seconds = self.now.saturating_sub(worker.started).as_secs_f64();
        self.workers.edit(id, |worker| worker.warm = true);
        if is_new {
            self.spares = SpareStarts::default();
            self.journal(EventKind::SpareReady { pid, seconds });
        }
    }

    /// A worker left the round and stands.
    fn worker_halted(&mut self, id: WorkerId, step: u64, kept: bool) {
        let rank = self.workers.edit(id, |worker| {
            let seat = worker.seat_mut()?;
            seat.halted = Some(step);
            seat.stateful &= kept;
            Some(seat.rank)
        });
        let Some(rank) = rank.flatten() else { return };
        self.record.reached = self.record.reached.max(step);
        let by_itself = matches!(self.phase, Phase::Starting | Phase::Running);
        if by_itself && !self.is_stopping() && self.round.cause.is_none() {
            // It saw what the supervisor does not see, a collective that broke for instance.
            self.round.note_failure(id, self.now);
            self.round.cause = Some(format!("rank {rank} left the round by itself, after {step} steps"));
            self.leave(format!("rank {rank} left it"));
        }
    }

    /// A rank ran out of memory: it changed nothing, and all leave the round to go on with smaller micro-batches.
    fn out_of_memory(&mut self, rank: Rank, step: u64, error: String) {
        // When several ranks say so, the first one's word is enough.
        if !self.reforms() || !self.phase.is_under_way() {
            return;
        }
        self.micro_batches.exhausted(self.round.split, step);
        let round = self.round.number;
        let split = self.micro_batches.split();
        self.journal(EventKind::MicroBatchesSplit { round, split, rank, error });
        let reason = format!("rank {rank} ran out of memory; micro-batches are cut into {split}");
        self.round.regroup_reason = Some(reason.clone());
        self.leave(reason);
    }

    /// A message of the present round. Most are journaled as they are.
    fn round_message(&mut self, id: WorkerId, rank: Rank, message: FromWorker) {
        let round = self.round.number;
        self.round.progress_at = self.now;
        let what = match message {
            FromWorker::CheckpointDamaged { path, file } => {
                self.round.damaged.get_or_insert(DamagedCheckpoint { path, file });
                return;
            }
            FromWorker::OutOfMemory { step, error } => return self.out_of_memory(rank, step, error),
            FromWorker::ShardWritten { step, epoch, dir, metric, table, blocked } => {
                let shard = ReportedShard::OnDisk(table);
                let report = ShardReport { rank: rank.0, step, epoch, dir, metric, blocked, shard };
                return self.shard_written(id, report);
            }
            FromWorker::ShardFailed { step, error } => return self.shard_failed(id, rank, step, &error),
            FromWorker::Ready { device, backend, libtorch } => {
                let Some(seconds) = self.worker_ready(id) else { return };
                EventKind::WorkerReady { round, rank, device, backend, libtorch, seconds }
            }
            FromWorker::StateReceived { step, from, bytes, seconds } => {
                EventKind::StateReceived { round, rank, from: Rank(from), step, bytes, seconds }
            }
            FromWorker::ModelBuilt { parameters, program_hash, batch, steps_per_epoch, steps_total } => {
                EventKind::ModelBuilt { parameters, program_hash, batch, steps_per_epoch, steps_total }
            }
            FromWorker::PrecisionChosen { format, reason } => EventKind::PrecisionChosen { format, reason },
            FromWorker::Decided { decision } => EventKind::Decided { decision },
            FromWorker::BatchChosen { batch, micro, accumulation, recompute, reason } => {
                EventKind::BatchChosen { batch, micro, accumulation, recompute, reason }
            }
            FromWorker::Stepped { epoch, step, loss, lr, grad_norm, samples_per_s } => {
                self.recovered();
                self.record.reached = self.record.reached.max(step);
                EventKind::Stepped { epoch, step, loss, lr, grad_norm, samples_per_s }
            }
            FromWorker::EpochEnded(report) => {
                self.recovered();
                EventKind::EpochEnded(report)
            }
            FromWorker::Trained { epoch, step, stopped_early, split, samples_per_s } => {
                self.recovered();
                self.record.trained = Some(step);
                self.record.metrics = Some(split.clone());
                let seconds = self.now.as_secs_f64();
                EventKind::Trained { epoch, step, stopped_early, split, samples_per_s, seconds }
            }
            FromWorker::ChunkWritten { start, end, path, blake3 } => {
                self.chunk_written(PredictedChunk { start, end, path, blake3 })
            }
            // Handled above.
            FromWorker::Hello { .. }
            | FromWorker::Warned { .. }
            | FromWorker::Failed { .. }
            | FromWorker::Done { .. }
            | FromWorker::KernelFaulted(_)
            | FromWorker::KernelRecovered { .. }
            | FromWorker::KernelsRan(_)
            | FromWorker::Entered { .. }
            | FromWorker::Warm
            | FromWorker::Halted { .. }
            | FromWorker::ShardStaged(_)
            | FromWorker::ShareKept { .. }
            | FromWorker::Lasting
            | FromWorker::BatchParts { .. } => return,
        };
        self.journal(what);
    }

    /// A worker can do its first step in this round; returns the seconds that it took.
    fn worker_ready(&mut self, id: WorkerId) -> Option<f64> {
        let now = self.now;
        let since = self.workers.edit(id, |worker| {
            let started = worker.started;
            let seat = worker.seat_mut()?;
            seat.ready = Some(now);
            seat.stateful = true;
            Some(seat.since.max(started))
        });
        let since = since.flatten()?;
        self.round.ready = true;
        self.round.progress_at = self.round.progress_at.max(now);
        Some(now.saturating_sub(since).as_secs_f64())
    }

    /// The first sign of progress after a failure.
    pub(super) fn recovered(&mut self) {
        if !self.phase.is_under_way() {
            return;
        }
        if let Some(recovering) = self.recovering.take() {
            let seconds = self.now.saturating_sub(recovering.since).as_secs_f64();
            let lost_steps = recovering.lost_steps;
            let from_rank = recovering.from_rank;
            self.journal(EventKind::Recovered { round: self.round.number, seconds, lost_steps, from_rank });
        }
    }

    fn chunk_written(&mut self, chunk: PredictedChunk) -> EventKind {
        if self.record.note_chunk(&chunk) {
            self.write(Effect::NoteChunk(chunk));
        }
        let (before, rows_total) = match &self.settings.run.job {
            RunJob::Predict { done, rows, .. } => (done.iter().map(|(start, end)| end - start).sum(), *rows),
            RunJob::Train { .. } | RunJob::Init { .. } | RunJob::Program => (0, 0),
        };
        EventKind::Predicted { rows: self.record.rows + before, rows_total }
    }
}
