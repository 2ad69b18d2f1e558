//! What the broker heard, and what follows for the run.

use super::{
    dispatcher::Agent,
    error::AgentError,
    round::Mode,
    shards,
    spec::{Chunk, Job},
    staged::Staged,
    unix::Page,
    worker::WARNINGS_MAX,
};
use enn_broker::BrokerEvent;
use enn_common::{
    event::EventKind,
    id::{Rank, Round, WorkerId},
    wire::message::{FromWorker, StagedShard},
};
use std::{sync::Arc, time::Instant};

impl Agent<'_> {
    pub(super) fn spoken(&mut self, event: BrokerEvent) -> Result<(), AgentError> {
        match event {
            BrokerEvent::Joined { worker, .. } => {
                if let Some(worker) = self.pool.get_mut(worker) {
                    worker.joined = Some(Instant::now());
                }
            }
            BrokerEvent::Reported { round, worker, message } => self.reported(worker, round, message)?,
            BrokerEvent::Left { worker, error: Some(error) } => {
                if let Some(known) = self.pool.get_mut(worker) {
                    known.words.get_or_insert(error);
                    self.fail_living(worker)?;
                }
            }
            BrokerEvent::Left { error: None, .. } => {}
            // Late comers of a round that is being ended are no news.
            BrokerEvent::Refused { error } if self.state.mode == Mode::Working && !self.is_stopping() => {
                (self.emit)(EventKind::Warned { message: format!("refused: {error}") })
            }
            BrokerEvent::Refused { .. } => {}
            BrokerEvent::Synced { token } => {
                if let Ok(worker) = u32::try_from(token) {
                    self.judge(WorkerId(worker))?;
                }
            }
            BrokerEvent::Broke { error } => return Err(AgentError::BrokerBroke(error)),
        }
        Ok(())
    }

    fn reported(&mut self, id: WorkerId, said_in: Option<Round>, message: FromWorker) -> Result<(), AgentError> {
        let round = self.state.round;
        let Some(worker) = self.pool.get_mut(id) else { return Ok(()) };
        // A spare has the index it is prepared for.
        let rank = worker.rank().unwrap_or(Rank(worker.slot.index.0));
        match message {
            FromWorker::Warned { message } => self.warned(id, rank, message),
            FromWorker::Failed { error } => {
                worker.words.get_or_insert_with(|| error.clone());
                if worker.seat().is_some() {
                    (self.emit)(EventKind::WorkerFailed { round, rank, error });
                    return self.fail_living(id);
                }
                self.pool.send_away(id, Instant::now());
            }
            FromWorker::CheckpointDamaged { path, file } if said_in == Some(round) => {
                self.state.damaged.get_or_insert((path, file));
            }
            FromWorker::Lasting => self.history.lasting |= said_in == Some(round),
            FromWorker::Done { stopped } => {
                worker.done.get_or_insert((Instant::now(), stopped));
                self.recovered();
            }
            FromWorker::Entered { round: entered } => worker.entered |= Round(entered) == round,
            FromWorker::Warm => self.warm(id),
            // It lost its seat before it sat, and has loaded everything since.
            FromWorker::Halted { .. } if worker.seat().is_none() => self.warm(id),
            FromWorker::ShareKept { round: left, share, of } if Round(left) == round => {
                if let Some(seat) = worker.seat_mut() {
                    seat.share = Some((share, of));
                }
            }
            FromWorker::Halted { round: left, step, kept } if Round(left) == round => {
                return self.halted(id, step, kept);
            }
            FromWorker::OutOfMemory { step, error } if said_in == Some(round) => {
                return self.out_of_memory(rank, step, error);
            }
            FromWorker::KernelFaulted(fault) => return self.kernel_faulted(rank, *fault),
            FromWorker::KernelRecovered { op, kernel, sig, step } => {
                if let Some(entry) = self.kernels.recovered(&op, &kernel, sig, step) {
                    self.sources.committer.write(self.kernels.file());
                    (self.emit)(EventKind::KernelRecovered { rank, entry: Box::new(entry) });
                }
            }
            FromWorker::KernelsRan(ops) => {
                self.kernels.ran(ops);
                self.sources.committer.write(self.kernels.file());
            }
            FromWorker::ShardWritten { .. } | FromWorker::ShardFailed { .. } => {
                let counts = said_in == Some(round) && worker.seat().is_some() && self.state.mode.is_under_way();
                return if counts { self.shard(rank, message) } else { Ok(()) };
            }
            FromWorker::ShardStaged(shard) => {
                let counts = said_in == Some(round) && worker.seat().is_some() && self.state.mode.is_under_way();
                let Some(page) = worker.child.here().map(|child| Arc::clone(child.page())) else { return Ok(()) };
                if counts {
                    return self.staged(rank, &page, *shard);
                }
                page.give_back(shard.ticket);
            }
            // Words of a round that is over.
            message if said_in == Some(round) => self.news(id, rank, message),
            _ => {}
        }
        Ok(())
    }

    /// A rank wrote its share of a checkpoint, or could not.
    fn shard(&mut self, rank: Rank, message: FromWorker) -> Result<(), AgentError> {
        let verdicts = match message {
            FromWorker::ShardWritten { step, epoch, dir, metric, table, blocked } => {
                self.state.shards.written(shards::Report { rank: rank.0, step, epoch, dir, metric, table, blocked })
            }
            FromWorker::ShardFailed { step, error } => self.state.shards.failed(rank.0, step, &error),
            _ => Vec::new(),
        };
        self.settle(verdicts)
    }

    /// A worker of this node left its share of a checkpoint in memory.
    fn staged(&mut self, rank: Rank, page: &Arc<Page>, shard: StagedShard) -> Result<(), AgentError> {
        let StagedShard { step, epoch, metric, blocked, ticket, .. } = shard;
        let dir = shard.dir.clone();
        let verdicts = match Staged::take(page, rank.0, shard) {
            Ok(staged) => {
                let table = staged.expected();
                self.state.staged.entry(step).or_default().push(staged);
                self.state.shards.written(shards::Report { rank: rank.0, step, epoch, dir, metric, table, blocked })
            }
            Err(error) => {
                page.give_back(ticket);
                self.state.shards.failed(rank.0, step, &error)
            }
        };
        if verdicts.is_empty() && !self.state.shards.is_open(step) {
            // Another rank could not save: nobody waits for this share.
            self.state.staged.remove(&step);
        }
        self.settle(verdicts)
    }

    fn settle(&mut self, verdicts: Vec<shards::Verdict>) -> Result<(), AgentError> {
        for verdict in verdicts {
            match verdict {
                shards::Verdict::Complete(set) => {
                    let step = set.step;
                    let staged = self.state.staged.remove(&step).unwrap_or_default();
                    if !self.sources.committer.commit(set, staged) {
                        self.abandoned(step, "too many commits are under way: the disk is too slow".into())?;
                    }
                }
                shards::Verdict::Abandoned { step, error } => {
                    self.state.staged.remove(&step);
                    self.abandoned(step, error)?;
                }
            }
        }
        Ok(())
    }

    fn warm(&mut self, id: WorkerId) {
        let Some(worker) = self.pool.get(id) else { return };
        let pid = worker.child.pid();
        let seconds = worker.started.elapsed().as_secs_f64();
        if self.pool.warmed(id) {
            (self.emit)(EventKind::SpareReady { pid, seconds });
        }
    }

    fn warned(&mut self, id: WorkerId, rank: Rank, message: String) {
        let Some(worker) = self.pool.get_mut(id) else { return };
        worker.warnings += 1;
        let message = match worker.warnings {
            count if count < WARNINGS_MAX => format!("rank {rank}: {message}"),
            WARNINGS_MAX => format!("rank {rank}: {message} (its further warnings are left out)"),
            _ => return,
        };
        (self.emit)(EventKind::Warned { message });
    }

    /// A worker left the round and stands.
    fn halted(&mut self, id: WorkerId, step: u64, kept: bool) -> Result<(), AgentError> {
        let Some(seat) = self.pool.get_mut(id).and_then(|worker| worker.seat_mut()) else { return Ok(()) };
        seat.halted = Some(step);
        seat.stateful &= kept;
        let rank = seat.rank;
        if self.state.mode == Mode::Working && !self.is_stopping() && self.state.cause.is_none() {
            // It saw what the agent does not see, a collective that broke for instance.
            self.state.suspect(id, Instant::now());
            self.state.cause = Some(format!("rank {rank} left the round by itself, after {step} steps"));
            return self.leave(format!("rank {rank} left it"));
        }
        Ok(())
    }

    /// Reports of the present round that are told as they are.
    fn news(&mut self, id: WorkerId, rank: Rank, message: FromWorker) {
        let round = self.state.round;
        let what = match message {
            FromWorker::Ready { device, backend, libtorch } => {
                let Some(worker) = self.pool.get_mut(id) else { return };
                let started = worker.started;
                let Some(seat) = worker.seat_mut() else { return };
                seat.ready = Some(Instant::now());
                seat.stateful = true;
                let seconds = seat.since.max(started).elapsed().as_secs_f64();
                self.state.ready = true;
                EventKind::WorkerReady { round, rank, device, backend, libtorch, seconds }
            }
            FromWorker::StateReceived { step, from, bytes, seconds, .. } => {
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
                EventKind::Stepped { epoch, step, loss, lr, grad_norm, samples_per_s }
            }
            FromWorker::EpochEnded(report) => {
                self.recovered();
                EventKind::EpochEnded(report)
            }
            FromWorker::Trained { epoch, step, stopped_early, split, samples_per_s } => {
                self.recovered();
                self.trained = Some(step);
                self.outcome.metrics = Some(split.clone());
                let seconds = self.began.elapsed().as_secs_f64();
                EventKind::Trained { epoch, step, stopped_early, split, samples_per_s, seconds }
            }
            FromWorker::ChunkWritten { start, end, path, blake3 } => self.chunk(Chunk { start, end, path, blake3 }),
            // Handled before, or by the broker.
            _ => return,
        };
        (self.emit)(what);
    }

    /// The first sign of progress after a failure.
    fn recovered(&mut self) {
        if self.state.mode.is_under_way()
            && let Some(recovering) = self.recovering.take()
        {
            let seconds = recovering.since.elapsed().as_secs_f64();
            let lost_steps = recovering.lost_steps;
            let from_rank = recovering.from_rank;
            (self.emit)(EventKind::Recovered { round: self.state.round, seconds, lost_steps, from_rank });
        }
    }

    fn chunk(&mut self, chunk: Chunk) -> EventKind {
        let known = self.outcome.chunks.iter().any(|other| other.start == chunk.start);
        if !known {
            self.sources.committer.predicted(chunk.clone());
            self.outcome.chunks.push(chunk);
        }
        let written = self.outcome.chunks.iter().map(|chunk| chunk.end - chunk.start).sum::<u64>();
        let (before, rows_total) = match &self.spec.job {
            Job::Predict { done, rows, .. } => (done.iter().map(|(start, end)| end - start).sum(), *rows),
            _ => (0, 0),
        };
        EventKind::Predicted { rows: written + before, rows_total }
    }
}
