//! From one round to the next: the verdict on a round that is over, the seats of the next, and the spares between them.

use super::{
    body::Body,
    child::Child,
    dispatcher::Agent,
    env::Identity,
    error::AgentError,
    policy::{self, Decision, Failed, Limits, Reason},
    round::{FAILED_GRACE, Mode, Recovering, RoundState},
    seats::{self, Home, Seating, Slot, Taker},
    shards::Shards,
    spec::{Ended, Job},
    worker::{Place, Seat, Worker},
};
use enn_common::{
    config::train::Device,
    event::EventKind,
    id::{Rank, Round, WorkerId},
    wire::{
        follower::{RunSnapshot, SeatFacts},
        message::{Assignment, Standby, WorkerTask},
    },
};
use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Longest time in which the first step after a failure keeps the next spare waiting.
const REFILL_WAIT_MAX: Duration = Duration::from_secs(2);

/// A seat of the round that begins.
#[derive(Debug, Clone, Copy)]
struct Given {
    rank: Rank,
    slot: Slot,
    worker: WorkerId,
    taker: Taker,
}

/// Workers of a round on a node.
fn local_world(places: &[Given], home: Home) -> u32 {
    u32::try_from(places.iter().filter(|place| place.slot.home == home).count()).unwrap_or(u32::MAX)
}

/// Where a round begins.
#[derive(Debug, Clone, Copy)]
struct Start {
    step: u64,
    /// Workers keep the state of that step; else the newest checkpoint has it, if there is one.
    kept: bool,
}

impl Agent<'_> {
    /// Does what is due when all that happened has been handled.
    pub(super) fn advance(&mut self) -> Result<(), AgentError> {
        self.part();
        self.drain_as_was_asked();
        // With nodes that have to agree first nothing begins but the end, for which an heir needs all that have the state.
        let all_known = !self.heir || !self.sources.nodes.awaits();
        let may_begin = self.sources.nodes.settled() || (self.is_stopping() && all_known);
        match self.state.mode {
            Mode::Gathering if self.is_stopping() => self.close(),
            Mode::Gathering if may_begin => self.begin_anew(),
            Mode::Working | Mode::Regrouping(_) if self.pool.seated().next().is_none() => self.close(),
            Mode::Working | Mode::Regrouping(_) | Mode::Halting(_) if self.pool.all_halted() && may_begin => {
                self.turn()
            }
            Mode::Working => {
                self.refill()?;
                self.regroup();
                Ok(())
            }
            Mode::Paused(_) if self.leaves() && self.pool.all_halted() && may_begin => self.hand_over(),
            Mode::Paused(since)
                if (self.paused.is_none() || self.is_stopping()) && self.pool.all_halted() && may_begin =>
            {
                self.wake(since)
            }
            Mode::Paused(_) => self.leave_drained(),
            Mode::Ending(_) | Mode::Closing(_) | Mode::Killed if self.verdict.is_none() && self.is_empty() => {
                self.all_ended()
            }
            _ => Ok(()),
        }
    }

    /// Begins a round in which nobody has state, from the newest checkpoint.
    pub(super) fn begin_anew(&mut self) -> Result<(), AgentError> {
        if !self.sources.nodes.settled() {
            self.state.mode = Mode::Gathering;
            return Ok(());
        }
        let newest = self.sources.committer.prepare()?;
        let step = newest.as_ref().map_or(0, |found| found.step);
        self.outcome.checkpoint = newest.map(|found| (found.step, found.path));
        if self.state.failed_at.is_some() {
            self.recovering(step, None);
        }
        let seating = self.seating()?;
        self.begin(seating, Start { step, kept: false })
    }

    /// The round is over and everybody who lives stands.
    fn turn(&mut self) -> Result<(), AgentError> {
        self.state.reached = self.state.reached.max(self.pool.reached());
        self.pool.settle_shares();
        let savers = self.pool.savers();
        let Some(cause) = self.state.cause.clone() else {
            if self.pool.candidates().kept.is_empty() {
                return self.close();
            }
            if self.leaves() {
                return self.hand_over();
            }
            let reason = self.state.wish.clone().unwrap_or_else(|| "the workers were asked to leave it".into());
            (self.emit)(EventKind::RoundLeft { round: self.state.round, reason });
            if self.is_stopping() {
                return self.go_on(seats::last(&savers));
            }
            return self.go_on_or_pause();
        };
        if savers.is_empty() && self.set_aside(&cause)? {
            return Ok(());
        }
        let stopping = self.is_stopping();
        let (decision, reason) = self.verdict_on_failure();
        if decision == Decision::Restart {
            self.history.restarts += 1;
            if !savers.is_empty() {
                (self.emit)(EventKind::RoundLeft { round: self.state.round, reason: cause });
                return self.go_on_or_pause();
            }
            self.round_failed(cause, true);
            self.outcome.restarts += 1;
            if self.paused.is_some() {
                self.pause();
                return Ok(());
            }
            return self.begin_anew();
        }
        if stopping && !savers.is_empty() {
            (self.emit)(EventKind::RoundLeft { round: self.state.round, reason: cause });
            return self.go_on(seats::last(&savers));
        }
        if stopping {
            self.round_failed(cause, false);
            return self.close();
        }
        self.give_up(cause, reason)
    }

    /// The run ends as failed; who keeps the state of training saves it first.
    pub(super) fn give_up(&mut self, cause: String, reason: Reason) -> Result<(), AgentError> {
        let savers = self.pool.savers();
        self.round_failed(cause.clone(), false);
        self.giving_up = Some(format!("{cause}\n({reason})"));
        if savers.is_empty() {
            return self.close();
        }
        let count = savers.len();
        let end = "before the run ends";
        (self.emit)(EventKind::Warned {
            message: format!("{count} surviving workers save the state of training {end}"),
        });
        self.ask_to_stop()?;
        self.go_on(seats::last(&savers))
    }

    /// Where the round failed because the checkpoint that it was to begin from is damaged, the next begins from the one before. That
    /// uses up no restart: of checkpoints there is an end.
    fn set_aside(&mut self, cause: &str) -> Result<bool, AgentError> {
        let begun_from = self.outcome.checkpoint.clone();
        let (Some((path, file)), Some((step, from))) = (self.state.damaged.take(), begun_from) else {
            return Ok(false);
        };
        if path != from || self.is_stopping() {
            return Ok(false);
        }
        let Some(error) = self.sources.committer.set_aside(path.clone(), file)? else { return Ok(false) };
        (self.emit)(EventKind::CheckpointDamaged { step, path, error });
        self.round_failed(cause.to_owned(), true);
        if self.paused.is_some() {
            self.pause();
        } else {
            self.begin_anew()?;
        }
        Ok(true)
    }

    /// Whether this node, which leads, was drained.
    fn leaves(&self) -> bool {
        !self.is_stopping() && self.sources.nodes.leaving().contains(&Home::OWN)
    }

    /// The next round, unless the run is to pause.
    pub(super) fn go_on_or_pause(&mut self) -> Result<(), AgentError> {
        if self.paused.is_some() {
            self.pause();
            return Ok(());
        }
        let seating = self.seating()?;
        self.go_on(seating)
    }

    /// What follows the failure of this round.
    pub(super) fn verdict_on_failure(&mut self) -> (Decision, Reason) {
        let RoundState { base, reached, ready, survivors, .. } = self.state;
        let furthest = self.pool.furthest().map_or(0, |(step, _)| step).max(reached);
        let failed = Failed { ready, progress: furthest > base, survivors };
        self.history.stopping = self.is_stopping();
        self.history = self.history.with(failed, self.spec.policy);
        policy::after_failure(self.history, Limits { max_restarts: self.spec.max_restarts, policy: self.spec.policy })
    }

    pub(super) fn round_failed(&mut self, cause: String, restarting: bool) {
        let restarts_left = self.spec.max_restarts.saturating_sub(self.history.restarts);
        (self.emit)(EventKind::RoundFailed { round: self.state.round, cause, restarting, restarts_left });
    }

    /// Everybody ended because one failed, or was killed.
    fn all_ended(&mut self) -> Result<(), AgentError> {
        let cause = self.state.cause.clone();
        let Some(cause) = cause else {
            self.verdict = Some(self.ended_early("the workers were killed".into()));
            return Ok(());
        };
        if self.set_aside(&cause)? {
            return Ok(());
        }
        let (decision, reason) = self.verdict_on_failure();
        let restarting = decision == Decision::Restart && self.giving_up.is_none();
        self.history.restarts += u32::from(restarting);
        self.round_failed(cause.clone(), restarting);
        if restarting {
            self.outcome.restarts += 1;
            return self.begin_anew();
        }
        self.verdict = Some(self.ended_early(format!("{cause}\n({reason})")));
        Ok(())
    }

    fn ended_early(&self, cause: String) -> Ended {
        match (&self.giving_up, self.stop) {
            (Some(cause), _) => Ended::Failed { cause: cause.clone() },
            (None, Some(signal)) => Ended::Stopped(signal),
            (None, None) => Ended::Failed { cause },
        }
    }

    /// Nobody has a seat any more and none is given: the run ends.
    pub(super) fn close(&mut self) -> Result<(), AgentError> {
        let now = Instant::now();
        let early = self.state.stopped || self.state.finished == 0;
        let ended = self.ended_early(self.state.cause.clone().unwrap_or_default());
        let failed = self.giving_up.is_some() || self.state.cause.is_some();
        self.verdict = Some(if failed || (early && self.stop.is_some()) { ended } else { Ended::Finished });
        // Also those who stand without a state that is worth saving.
        let left: Vec<_> = self.pool.all().map(|worker| (worker.slot.home, worker.id)).collect();
        for (home, worker) in left {
            self.pool.send_away(worker, now);
            self.sources.nodes.dismiss(home, worker)?;
        }
        self.state.mode = Mode::Closing(now + FAILED_GRACE);
        Ok(())
    }

    /// Begins the next round with workers that keep their state.
    pub(super) fn go_on(&mut self, seating: Seating) -> Result<(), AgentError> {
        if seating.is_empty() {
            return self.close();
        }
        self.sources.committer.abandon(self.state.attempt.clone(), u64::MAX);
        let resume = self.outcome.checkpoint.as_ref().map_or(0, |(step, _)| *step);
        let furthest = self.pool.furthest();
        let step = furthest.map_or(resume, |(step, _)| step);
        if self.state.failed_at.is_some() {
            let from = furthest.and_then(|(_, id)| seating.iter().position(|(_, taker)| *taker == Taker::Kept(id)));
            self.recovering(step, from.and_then(|rank| u32::try_from(rank).ok()).map(Rank));
        }
        self.begin(seating, Start { step, kept: furthest.is_some() })
    }

    /// The time from the failure to the next step runs. A failure before that step prolongs it.
    fn recovering(&mut self, step: u64, from_rank: Option<Rank>) {
        let before = self.recovering;
        let since = before.map(|before| before.since).or(self.state.failed_at).unwrap_or_else(Instant::now);
        let lost_steps = self.state.reached.saturating_sub(step).max(before.map_or(0, |before| before.lost_steps));
        self.recovering = Some(Recovering { since, lost_steps, from_rank });
    }

    fn begin(&mut self, seating: Seating, start: Start) -> Result<(), AgentError> {
        let now = Instant::now();
        let round = Round(self.first_round.0 + self.outcome.rounds);
        self.heir = false;
        self.outcome.rounds += 1;
        // Unique among all starts in this run directory, so that a dead attempt's files are never taken for a living one's.
        let attempt = format!("{round}-{:x}", std::process::id());
        let places: Vec<Given> = (0..).zip(seating).map(|(rank, seat)| self.place(Rank(rank), seat)).collect();
        let world = u32::try_from(places.len()).unwrap_or(u32::MAX);
        for place in places.iter().filter(|place| place.taker == Taker::New) {
            // When the round is over before it comes, it stands by.
            self.sources.nodes.expect(place.slot, place.worker, self.standby(place.slot))?;
        }
        // What the pages show before it begins is no progress of this round.
        let base = start.step.max(self.pool.reached());
        // Before they are told of the round: a wish that is still there would make them leave it.
        self.pool.ask_to_regroup(false);
        let assigned = |place: &Given| {
            let world = (world, local_world(&places, place.slot.home));
            (place.slot.home, place.worker, self.assignment(round, (place.rank, place.slot), world, &attempt))
        };
        let seats = places.iter().map(assigned).collect();
        self.sources.nodes.begin(round, seats, &self.standing(round, &attempt))?;
        self.state = RoundState::new(round, attempt, base, start.kept);
        self.state.split = self.parts.split();
        self.state.shards = Shards::new(places.len());
        self.watch.round_began();
        let resume = self.outcome.checkpoint.as_ref().map(|(step, _)| *step);
        let resume_step = if start.kept { Some(start.step) } else { resume };
        // Before the round is told of: a launch that comes after this one counts the rounds that have a directory.
        let logs = self.logs().join(round.to_string());
        std::fs::create_dir_all(&logs).map_err(|source| AgentError::Log { path: logs.clone(), source })?;
        if self.sources.nodes.rendezvous().is_some() {
            let (host, port) = self.store_at().unwrap_or_default();
            let nodes = self.sources.nodes.briefs();
            let restart = self.outcome.restarts;
            (self.emit)(EventKind::RoundFormed { round, restart, master: format!("{host}:{port}"), nodes });
        }
        (self.emit)(EventKind::RoundStarted { round, world_size: world, attempt: self.outcome.restarts, resume_step });
        for place in &places {
            let logs = logs.join(place.rank.to_string());
            match place.taker {
                Taker::New => self.start(place, (world, local_world(&places, place.slot.home)), &logs, now)?,
                Taker::Kept(_) | Taker::Spare(_) => self.take_seat(place, &logs, now),
            }
        }
        Ok(())
    }

    fn place(&mut self, rank: Rank, (slot, taker): (Slot, Taker)) -> Given {
        let worker = match taker {
            Taker::Kept(worker) | Taker::Spare(worker) => worker,
            Taker::New => self.pool.name(),
        };
        Given { rank, slot, worker, taker }
    }

    /// A living process sits down.
    fn take_seat(&mut self, place: &Given, logs: &Path, now: Instant) {
        let Given { rank, slot, worker, taker } = *place;
        let Some(worker) = self.pool.get_mut(worker) else { return };
        worker.slot = slot;
        let stateful = worker.seat().is_some_and(|seat| seat.stateful);
        worker.place = Place::Seat(Seat::new(rank, stateful, now));
        if let Err(error) = worker.child.log_also_in(logs) {
            // The log is where it was; only `enn logs` of this round does not show it.
            tracing::debug!("{}: {error}", logs.display());
        }
        let pid = worker.child.pid();
        let spare = matches!(taker, Taker::Spare(_));
        let round = self.state.round;
        let local_rank = slot.index;
        let host = self.sources.nodes.host(slot.home);
        (self.emit)(EventKind::SeatTaken { round, rank, local_rank, pid, spare, host });
    }

    /// Starts a process for a seat.
    fn start(&mut self, place: &Given, worlds: (u32, u32), logs: &Path, now: Instant) -> Result<(), AgentError> {
        let Given { rank, slot, worker, .. } = *place;
        let (world, local_world) = worlds;
        let local_rank = slot.index.0;
        let facts = SeatFacts { round: self.state.round.0, rank: rank.0, local_rank, world, local_world };
        let child = self.spawn(worker, slot.home, Some(facts), logs)?;
        self.pool.add(Worker::new(worker, child, (slot, Place::Seat(Seat::new(rank, false, now))), now));
        self.announce(worker);
        Ok(())
    }

    /// Tells that a process was started, when its number is known.
    pub(super) fn announce(&mut self, id: WorkerId) {
        let Some(worker) = self.pool.get(id).filter(|worker| worker.child.pid() > 0) else { return };
        let pid = worker.child.pid();
        let local_rank = worker.slot.index;
        let host = self.sources.nodes.host(worker.slot.home);
        (self.emit)(match worker.rank() {
            Some(rank) => {
                EventKind::WorkerStarted { round: self.state.round, local_rank, rank, pid, host, forked: false }
            }
            None => EventKind::SpareStarted { pid, local_rank, host },
        });
    }

    fn spawn(
        &mut self,
        worker: WorkerId,
        home: Home,
        seat: Option<SeatFacts>,
        logs: &Path,
    ) -> Result<Body, AgentError> {
        if let Some(far) = self.far(home, worker, seat, logs) {
            return Ok(far);
        }
        let store = self.store_at();
        let identity = Identity {
            worker: worker.0,
            seat,
            control_fd: -1,
            broker: self.sources.nodes.broker.socket(),
            run_dir: &self.spec.run_dir,
            store: store.as_ref().map(|(host, port)| (host.as_str(), *port)),
        };
        let child = Child::spawn(&self.spec.worker, identity, logs, &mut self.guard)?;
        child.offer_staging();
        Ok(Body::Here(child))
    }

    /// What a head that takes over has to know.
    pub(super) fn standing(&self, round: Round, attempt: &str) -> RunSnapshot {
        RunSnapshot {
            round: round.0,
            attempt: attempt.to_owned(),
            restarts: self.outcome.restarts,
            failures: self.history.restarts,
            workers: self.pool.names(),
            split: self.parts.split(),
            requests: self.wishes,
            resized: self.resized,
            paused: self.paused.is_some(),
            leaving: self.leaving(),
            stop: self.stop.map(|signal| signal.name().to_owned()),
            drained: None,
        }
    }

    /// Host and port of the store in which the workers meet.
    fn store_at(&self) -> Option<(String, u16)> {
        if let Some(rendezvous) = self.sources.nodes.rendezvous() {
            return Some(rendezvous.store());
        }
        self.store.as_ref().map(|store| (store.addr().ip().to_string(), store.addr().port()))
    }

    fn logs(&self) -> PathBuf {
        self.spec.run_dir.join("logs")
    }

    fn assignment(
        &self,
        round: Round,
        (rank, slot): (Rank, Slot),
        (world, local_world): (u32, u32),
        attempt: &str,
    ) -> Assignment {
        let (store_host, store_port) = self.store_at().unwrap_or_default();
        let attempt = attempt.to_owned();
        let task = match &self.spec.job {
            Job::Train { staged, init } => {
                let newest = self.outcome.checkpoint.as_ref().map(|(_, path)| path.clone());
                WorkerTask::Train { staged: staged.clone(), resume: newest.or_else(|| init.clone()), attempt }
            }
            Job::Predict { staged, checkpoint, out, chunk_rows, done, precision, .. } => {
                let written = self.outcome.chunks.iter().map(|chunk| (chunk.start, chunk.end));
                let mut done: Vec<_> = done.iter().copied().chain(written).collect();
                done.sort_unstable();
                let staged = staged.clone();
                let checkpoint = checkpoint.clone();
                let out = out.clone();
                WorkerTask::Predict { staged, checkpoint, out, chunk_rows: *chunk_rows, done, precision: *precision }
            }
            Job::Init { meta } => WorkerTask::Init { meta: meta.clone(), attempt },
        };
        Assignment {
            round: round.0,
            rank: rank.0,
            world_size: world,
            local_rank: slot.index.0,
            local_world_size: local_world,
            store_host,
            store_port,
            device: self.device().into(),
            threads: self.spec.worker.threads,
            run_dir: self.spec.run_dir.clone(),
            kernels: self.kernels.told(),
            split: self.parts.split(),
            task,
        }
    }

    fn device(&self) -> &'static str {
        if self.spec.worker.device == Device::Cuda { "cuda" } else { "cpu" }
    }

    /// When the next spare is started; `None`: none is wanted, or the round's workers are not yet at work.
    pub(super) fn next_spare(&self) -> Option<Instant> {
        let quiet = self.reforms() && self.state.mode == Mode::Working && !self.is_stopping();
        if !quiet || self.state.finished > 0 || !self.pool.all_ready() {
            return None;
        }
        let seated = self.pool.seated().count();
        let standing = self.pool.spares().count();
        let missing = (self.world as usize).saturating_sub(seated);
        let wanted = self.spec.spares as usize * self.sources.nodes.rooms().len() + missing;
        let at = self.pool.spare_from(Instant::now()).filter(|_| standing < wanted)?;
        // After a failure the first step comes first: a process that starts takes the cores it needs.
        Some(self.recovering.map_or(at, |recovering| at.max(recovering.since + REFILL_WAIT_MAX)))
    }

    /// What a process without a seat prepares for.
    fn standby(&self, slot: Slot) -> Option<Standby> {
        let Job::Train { staged, .. } = &self.spec.job else { return None };
        let (store_host, store_port) = self.store_at().unwrap_or_default();
        self.reforms().then(|| Standby {
            device: self.device().into(),
            local_rank: slot.index.0,
            world_size: self.world,
            store_host,
            store_port,
            threads: self.spec.worker.threads,
            run_dir: self.spec.run_dir.clone(),
            staged: staged.clone(),
        })
    }

    /// Starts the spares that are due.
    fn refill(&mut self) -> Result<(), AgentError> {
        while self.next_spare().is_some_and(|at| at <= Instant::now()) {
            let (taken, hints) = self.pool.slots();
            let slot = seats::hint(&taken, &hints, &self.bounds().rooms);
            let id = self.pool.name();
            self.sources.nodes.expect(slot, id, self.standby(slot))?;
            let logs = self.logs().join("spares").join(format!("worker-{id}"));
            match self.spawn(id, slot.home, None, &logs) {
                Ok(child) => {
                    self.pool.add(Worker::new(id, child, (slot, Place::Spare), Instant::now()));
                    self.announce(id);
                }
                Err(error) => {
                    self.sources.nodes.dismiss(slot.home, id)?;
                    self.pool.spare_lost(Instant::now());
                    (self.emit)(EventKind::Warned { message: format!("no spare: {error}") });
                }
            }
        }
        Ok(())
    }
}
