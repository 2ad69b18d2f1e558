//! The owner loop: one round after another, one event after another. It alone holds the state of the run.

use super::{
    cause,
    child::Child,
    committer::{Checkpoints, Committed, Committer},
    env::Identity,
    error::AgentError,
    kernels::{self, Kernels},
    policy::{self, Decision, History, Limits},
    round::{Mode, RoundState, WARNINGS_MAX, Worker},
    spec::{AgentSpec, Chunk, Ended, Job, Outcome, Signal},
    wait::{Event, Sources},
};
use crate::process::{Exit, Guard, STOP_SIGNALS, Signals};
use enn_broker::{Broker, BrokerEvent, RoundPlan, store};
use enn_common::{
    config::train::Device,
    event::What,
    id::{LocalRank, Rank, Round},
    kernels::KernelFault,
    wire::message::{Assignment, FromWorker, Task, ToWorker},
};
use std::{
    net::{Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

/// Runs workers until their work is done, a signal stops them, or restarts are used up. Every event goes to `emit`.
///
/// The calling thread must live until this returns: workers die with the thread that forked them.
///
/// # Errors
/// When the machine refuses something the agent itself needs; a worker's failure is an outcome.
pub fn run(
    spec: &AgentSpec,
    checkpoints: Box<dyn Checkpoints>,
    emit: &mut dyn FnMut(What),
) -> Result<Outcome, AgentError> {
    let system = |what| move |source| AgentError::System { what, source };
    // The guard first: it must not inherit what comes after.
    let guard = Guard::start(None, None).map_err(system("start the guard process"))?;
    let handled = [&STOP_SIGNALS[..], &[nix::sys::signal::Signal::SIGUSR1]].concat();
    let signals =
        if spec.handle_signals { Signals::install(&handled).map_err(system("handle signals"))? } else { None };
    let store = if matches!(spec.job, Job::Train { .. }) && spec.world > 1 {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Some(store::serve(any, store::Limits::default())?)
    } else {
        None
    };
    let sources = Sources::new(Broker::serve(&spec.socket_parent)?, Committer::start(checkpoints)?, signals);
    let mut agent = Agent {
        spec,
        emit,
        sources,
        guard,
        store,
        kernels: Kernels::open(&spec.run_dir, &spec.worker.program),
        history: History::default(),
        outcome: Outcome {
            ended: Ended::Finished,
            restarts: 0,
            rounds: 0,
            metrics: None,
            checkpoint: None,
            chunks: Vec::new(),
        },
        began: Instant::now(),
    };
    agent.rounds()?;
    agent.outcome.chunks.sort_by_key(|chunk| chunk.start);
    Ok(agent.outcome)
}

struct Agent<'a> {
    spec: &'a AgentSpec,
    emit: &'a mut dyn FnMut(What),
    sources: Sources,
    guard: Guard,
    store: Option<store::StoreHandle>,
    kernels: Kernels,
    history: History,
    outcome: Outcome,
    began: Instant,
}

impl Agent<'_> {
    fn rounds(&mut self) -> Result<(), AgentError> {
        loop {
            let round = Round(self.spec.first_round.0 + self.outcome.rounds);
            let state = self.round(round)?;
            self.outcome.rounds += 1;
            let Some(cause) = state.cause.clone() else {
                let stopped = state.stop.filter(|_| state.stopped_early());
                self.outcome.ended = stopped.map_or(Ended::Finished, Ended::Stopped);
                return Ok(());
            };
            self.history.stopping = state.stop.is_some();
            self.history.early_failures = if state.was_ready() { 0 } else { self.history.early_failures + 1 };
            let limits = Limits { max_restarts: self.spec.max_restarts };
            let (decision, reason) = policy::after_failure(self.history, limits);
            let restarting = decision == Decision::Restart;
            let restarts_left = limits.max_restarts - self.history.restarts - u32::from(restarting);
            (self.emit)(What::RoundFailed { round, cause: cause.clone(), restarting, restarts_left });
            if !restarting {
                self.outcome.ended = match state.stop {
                    Some(signal) => Ended::Stopped(signal),
                    None => Ended::Failed { cause: format!("{cause}\n({reason})") },
                };
                return Ok(());
            }
            self.history.restarts += 1;
            self.outcome.restarts = self.history.restarts;
        }
    }

    fn round(&mut self, round: Round) -> Result<RoundState, AgentError> {
        let newest = self.sources.committer.prepare()?;
        self.outcome.checkpoint = newest.as_ref().map(|found| (found.step, found.path.clone()));
        let assignments = (0..self.spec.world).map(|rank| self.assignment(round, rank, newest.as_ref())).collect();
        self.sources.broker.begin_round(RoundPlan { round, assignments })?;
        let resume_step = newest.map(|found| found.step);
        let (world_size, attempt) = (self.spec.world, self.history.restarts);
        (self.emit)(What::RoundStarted { round, world_size, attempt, resume_step });
        let mut state = RoundState::new(round, self.spec.grace);
        for rank in 0..self.spec.world {
            let worker = self.spawn(round, rank)?;
            state.workers.push(worker);
        }
        while !state.settled() || self.sources.committer.pending > 0 {
            let children: Vec<&Child> = state.workers.iter().map(|worker| &worker.child).collect();
            let events = self.sources.wait(&children, state.deadline())?;
            for event in events {
                self.handle(&mut state, event)?;
            }
        }
        self.sources.broker.end_round()?;
        Ok(state)
    }

    fn assignment(&self, round: Round, rank: u32, newest: Option<&Committed>) -> Assignment {
        let store = self.store.as_ref().map(store::StoreHandle::addr);
        // Unique among all starts in this run directory, so that a dead attempt's files are never taken for a living one's.
        let attempt = format!("{}-{:x}", round, std::process::id());
        let task = match &self.spec.job {
            Job::Train { staged, init } => {
                let resume = newest.map(|found| found.path.clone()).or_else(|| init.clone());
                Task::Train { staged: staged.clone(), resume, attempt }
            }
            Job::Predict { staged, checkpoint, out, chunk_rows, done, .. } => {
                let written = self.outcome.chunks.iter().map(|chunk| (chunk.start, chunk.end));
                let mut done: Vec<_> = done.iter().copied().chain(written).collect();
                done.sort_unstable();
                let (staged, checkpoint, out) = (staged.clone(), checkpoint.clone(), out.clone());
                Task::Predict { staged, checkpoint, out, chunk_rows: *chunk_rows, done }
            }
            Job::Init { meta } => Task::Init { meta: meta.clone(), attempt },
        };
        let device = if self.spec.worker.device == Device::Cuda { "cuda" } else { "cpu" };
        Assignment {
            round: round.0,
            rank,
            world_size: self.spec.world,
            local_rank: rank,
            local_world_size: self.spec.world,
            store_host: store.map_or_else(String::new, |addr| addr.ip().to_string()),
            store_port: store.map_or(0, |addr| addr.port()),
            device: device.into(),
            threads: self.spec.worker.threads,
            run_dir: self.spec.run_dir.clone(),
            kernels: self.kernels.told(),
            task,
        }
    }

    fn spawn(&mut self, round: Round, rank: u32) -> Result<Worker, AgentError> {
        let store = self.store.as_ref().map(|store| (store.addr().ip().to_string(), store.addr().port()));
        let identity = Identity {
            round: round.0,
            rank,
            world: self.spec.world,
            control_fd: -1,
            broker: self.sources.broker.socket(),
            run_dir: &self.spec.run_dir,
            store: store.as_ref().map(|(host, port)| (host.as_str(), *port)),
        };
        let logs = self.spec.run_dir.join("logs").join(round.to_string()).join(rank.to_string());
        let child = Child::spawn(&self.spec.worker, identity, &logs, &mut self.guard)?;
        let pid = child.pid();
        (self.emit)(What::WorkerStarted {
            round,
            local_rank: LocalRank(rank),
            rank: Rank(rank),
            pid,
            host: String::new(),
        });
        Ok(Worker::new(Rank(rank), child, Instant::now()))
    }

    fn handle(&mut self, state: &mut RoundState, event: Event) -> Result<(), AgentError> {
        match event {
            Event::Signalled(signal) => self.signalled(state, signal),
            Event::Ended { worker, late } => self.ended(state, worker, late)?,
            Event::Spoken => {
                while let Some(event) = self.sources.broker.event() {
                    self.spoken(state, event)?;
                }
            }
            Event::Committed => {
                while let Some(verdict) = self.sources.committer.verdict() {
                    let step = verdict.step;
                    match verdict.result {
                        Ok(committed) => self.committed(committed, verdict.seconds)?,
                        Err(error) => self.abandoned(step, error.to_string())?,
                    }
                }
            }
            Event::TimeUp => self.time_up(state)?,
        }
        Ok(())
    }

    fn signalled(&mut self, state: &mut RoundState, signal: Signal) {
        // Slurm ends what it puts back into the queue: after SIGUSR1 that is no second wish of the user's.
        let second = state.stop.is_some_and(|first| first != Signal::TimeLimit);
        (self.emit)(What::StopRequested { signal: signal.name().into(), second });
        state.stop.get_or_insert(signal);
        match state.mode {
            Mode::Running if !second => {
                state.mode = Mode::Stopping(Instant::now() + self.spec.grace);
                for worker in &state.workers {
                    worker.child.ask_to_stop();
                }
            }
            _ if second => kill(state),
            _ => {}
        }
    }

    fn ended(&mut self, state: &mut RoundState, index: usize, late: Duration) -> Result<(), AgentError> {
        let round = state.round;
        let worker = &mut state.workers[index];
        let began = Instant::now();
        let Some(exit) = worker.child.reap(&mut self.guard) else { return Ok(()) };
        let seconds_to_notice = (late + began.elapsed()).as_secs_f64();
        let (code, signal) = match exit {
            Exit::Code(code) => (Some(code), None),
            Exit::Signal(signal) => (None, Some(signal)),
        };
        let (rank, pid) = (worker.rank, worker.child.pid());
        (self.emit)(What::WorkerExited { round, rank, pid, code, signal, seconds_to_notice });
        // Its last words may still be in the socket: it is judged when the broker has read them.
        self.sources.broker.sync(token(round, index)).map_err(AgentError::from)
    }

    fn spoken(&mut self, state: &mut RoundState, event: BrokerEvent) -> Result<(), AgentError> {
        let current = state.round;
        match event {
            BrokerEvent::Joined { round, worker, .. } if round == current => {
                if let Some(worker) = state.workers.get_mut(worker.0 as usize) {
                    worker.joined = Some(Instant::now());
                }
            }
            BrokerEvent::Reported { round, worker, message } if round == current => {
                self.reported(state, worker.0 as usize, message)?;
            }
            BrokerEvent::ShardsWritten { round, shards } if round == current => {
                let step = shards.step;
                if !self.sources.committer.commit(shards) {
                    self.abandoned(step, "too many commits are under way: the disk is too slow".into())?;
                }
            }
            BrokerEvent::ShardsAbandoned { round, step, error } if round == current => {
                (self.emit)(What::CheckpointFailed { step, error });
            }
            BrokerEvent::Left { round, worker, error } if round == current => {
                if let (Some(error), Some(worker)) = (error, state.workers.get_mut(worker.0 as usize)) {
                    worker.words.get_or_insert(error);
                    let index = worker.rank.0 as usize;
                    self.fail(state, index)?;
                }
            }
            // Late comers of a round that is being ended are no news.
            BrokerEvent::Refused { error } if state.mode == Mode::Running => {
                (self.emit)(What::Warned { message: format!("refused: {error}") })
            }
            BrokerEvent::Synced { token: found } => {
                let awaited = (0..state.workers.len()).find(|index| token(current, *index) == found);
                if let Some(index) = awaited {
                    self.judge(state, index)?;
                }
            }
            BrokerEvent::Broke { error } => return Err(AgentError::BrokerBroke(error)),
            // Words of a round that is over.
            _ => {}
        }
        Ok(())
    }

    fn reported(&mut self, state: &mut RoundState, index: usize, message: FromWorker) -> Result<(), AgentError> {
        let round = state.round;
        let Some(worker) = state.workers.get_mut(index) else { return Ok(()) };
        let rank = worker.rank;
        let what = match message {
            FromWorker::Ready { device, backend, libtorch } => {
                worker.ready = true;
                let seconds = worker.started.elapsed().as_secs_f64();
                What::WorkerReady { round, rank, device, backend, libtorch, seconds }
            }
            FromWorker::Warned { message } => {
                worker.warnings += 1;
                match worker.warnings {
                    count if count < WARNINGS_MAX => What::Warned { message: format!("rank {rank}: {message}") },
                    WARNINGS_MAX => {
                        What::Warned { message: format!("rank {rank}: {message} (its further warnings are left out)") }
                    }
                    _ => return Ok(()),
                }
            }
            FromWorker::Failed { error } => {
                worker.words.get_or_insert_with(|| error.clone());
                (self.emit)(What::WorkerFailed { round, rank, error });
                return self.fail(state, index);
            }
            FromWorker::Done { stopped } => {
                worker.done.get_or_insert((Instant::now(), stopped));
                return Ok(());
            }
            FromWorker::KernelFaulted(fault) => return self.kernel_faulted(rank, *fault),
            FromWorker::KernelRecovered { op, kernel, sig, step } => {
                let Some(entry) = self.kernels.recovered(&op, &kernel, sig, step) else { return Ok(()) };
                self.sources.committer.write(self.kernels.file());
                What::KernelRecovered { rank, entry: Box::new(entry) }
            }
            FromWorker::KernelsRan(ops) => {
                self.kernels.ran(ops);
                self.sources.committer.write(self.kernels.file());
                return Ok(());
            }
            FromWorker::ChunkWritten { start, end, path, blake3 } => self.chunk(Chunk { start, end, path, blake3 }),
            message => match self.news(message) {
                Some(what) => what,
                None => return Ok(()),
            },
        };
        (self.emit)(what);
        Ok(())
    }

    /// Reports that are passed on as they are.
    fn news(&mut self, message: FromWorker) -> Option<What> {
        match message {
            FromWorker::ModelBuilt { parameters, program_hash, batch, steps_per_epoch, steps_total } => {
                Some(What::ModelBuilt { parameters, program_hash, batch, steps_per_epoch, steps_total })
            }
            FromWorker::Stepped { epoch, step, loss, lr, grad_norm, samples_per_s } => {
                Some(What::Stepped { epoch, step, loss, lr, grad_norm, samples_per_s })
            }
            FromWorker::EpochEnded(report) => Some(What::EpochEnded(report)),
            FromWorker::Trained { epoch, step, stopped_early, split, samples_per_s } => {
                self.outcome.metrics = Some(split.clone());
                let seconds = self.began.elapsed().as_secs_f64();
                Some(What::Trained { epoch, step, stopped_early, split, samples_per_s, seconds })
            }
            // Handled before, or by the broker.
            _ => None,
        }
    }

    /// A kernel is out of use: on disk, in the journal, and for all workers.
    fn kernel_faulted(&mut self, rank: Rank, fault: KernelFault) -> Result<(), AgentError> {
        let Some(entry) = self.kernels.faulted(fault) else { return Ok(()) };
        self.sources.committer.write(self.kernels.file());
        (self.emit)(What::KernelQuarantined { rank, entry: Box::new(entry) });
        Ok(self.sources.broker.tell_all(ToWorker::Kernels(Box::new(self.kernels.told())))?)
    }

    /// Quarantines the kernel that a worker died in, if it did.
    fn accuse(&mut self, state: &RoundState, index: usize) -> Result<(), AgentError> {
        let worker = &state.workers[index];
        match kernels::accused(&worker.evidence()) {
            Some(fault) => self.kernel_faulted(worker.rank, fault),
            None => Ok(()),
        }
    }

    fn chunk(&mut self, chunk: Chunk) -> What {
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
        What::Predicted { rows: written + before, rows_total }
    }

    fn committed(&mut self, committed: Committed, seconds: f64) -> Result<(), AgentError> {
        let Committed { step, path, bytes, metric } = committed;
        self.outcome.checkpoint = Some((step, path.clone()));
        self.sources.broker.tell_all(ToWorker::Committed { step, path: path.clone() })?;
        (self.emit)(What::CheckpointCommitted { step, path, bytes, seconds, metric });
        Ok(())
    }

    fn abandoned(&mut self, step: u64, error: String) -> Result<(), AgentError> {
        self.sources.broker.tell_all(ToWorker::Abandoned { step, error: error.clone() })?;
        (self.emit)(What::CheckpointFailed { step, error });
        Ok(())
    }

    /// The worker's process is gone and everything it said has been heard.
    fn judge(&mut self, state: &mut RoundState, index: usize) -> Result<(), AgentError> {
        self.accuse(state, index)?;
        let worker = &mut state.workers[index];
        worker.judged = true;
        let expected = matches!(state.mode, Mode::Failing(_) | Mode::Killed);
        if expected || worker.dismissed || cause::succeeded(&worker.evidence()) {
            return Ok(());
        }
        self.fail(state, index)
    }

    /// A worker failed: it is the cause if it is the first, and the round ends for all.
    fn fail(&mut self, state: &mut RoundState, index: usize) -> Result<(), AgentError> {
        if matches!(state.mode, Mode::Failing(_) | Mode::Killed) {
            return Ok(());
        }
        self.accuse(state, index)?;
        state.blame(index);
        state.mode = RoundState::failing(Instant::now());
        for worker in &state.workers {
            worker.child.signal(nix::sys::signal::Signal::SIGTERM);
        }
        // A worker ends itself at once when its socket closes, however deep it waits in a collective.
        self.sources.broker.end_round().map_err(AgentError::from)
    }

    fn time_up(&mut self, state: &mut RoundState) -> Result<(), AgentError> {
        match state.mode {
            Mode::Running => {
                for (index, accusation) in state.overdue(Instant::now()) {
                    let worker = &mut state.workers[index];
                    if accusation.is_empty() {
                        let message = format!("rank {} finished but did not end; it was killed", worker.rank);
                        (self.emit)(What::Warned { message });
                        worker.dismissed = true;
                        worker.child.signal(nix::sys::signal::Signal::SIGKILL);
                    } else {
                        worker.words.get_or_insert(accusation);
                        self.fail(state, index)?;
                    }
                }
            }
            Mode::Stopping(at) if Instant::now() >= at => {
                let message =
                    format!("workers did not end within {:.1} s and were killed", self.spec.grace.as_secs_f64());
                (self.emit)(What::Warned { message });
                kill(state);
            }
            Mode::Failing(at) if Instant::now() >= at => kill(state),
            _ => {}
        }
        Ok(())
    }
}

fn kill(state: &mut RoundState) {
    state.mode = Mode::Killed;
    for worker in &state.workers {
        worker.child.signal(nix::sys::signal::Signal::SIGKILL);
    }
}

/// Names a worker of a round in `Command::Sync`.
fn token(round: Round, index: usize) -> u64 {
    (round.0 << 16) | index as u64
}
