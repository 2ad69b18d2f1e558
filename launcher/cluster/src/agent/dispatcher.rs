//! The owner loop: one event after another. It alone holds the state of the run.

use super::{
    callers::Callers,
    cause::{self, Evidence},
    committer::{Checkpoints, Committed, Committer},
    control::Control,
    error::AgentError,
    hang,
    kernels::{self, Kernels},
    memory::Parts,
    nodes::Nodes,
    policy::History,
    pool::Pool,
    round::{FAILED_GRACE, HALT_WAIT_MAX, Mode, Recovering, RoundState},
    spec::{AgentSpec, Ended, Job, Outcome, Signal},
    straggler::Watch,
    unix,
    wait::{Event, Sources},
    worker::{Place, Worker},
};
use crate::rendezvous::Rendezvous;
use enn_broker::{Broker, tcpstore};
use enn_common::{
    config::train::Recovery,
    event::EventKind,
    id::{Rank, Round, WorkerId},
    kernels::KernelFault,
    wire::{follower::RunDescription, message::ToWorker},
};
use enn_process::{Exit, Guard, STOP_SIGNALS, Signals};
use nix::sys::signal::Signal as Posix;
use std::{
    net::{Ipv4Addr, SocketAddr},
    rc::Rc,
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
    emit: &mut dyn FnMut(EventKind),
) -> Result<Outcome, AgentError> {
    let may_grow = spec.policy == Recovery::Reform && spec.workers_most > 1;
    let means = Means::new(guard()?, spec.handle_signals)?;
    let store = if matches!(spec.job, Job::Train { .. }) && (spec.world > 1 || may_grow) {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Some(tcpstore::serve(any, tcpstore::Limits::default())?)
    } else {
        None
    };
    let broker = Broker::serve(&spec.socket_parent)?;
    let nodes = Nodes::new(broker, spec, None);
    let mut agent = Agent::new(spec, checkpoints, emit, (means, nodes))?;
    agent.store = store;
    agent.begin_anew()?;
    agent.work()
}

/// The same as the head of all nodes that meet in `rendezvous`, which this node hosts.
///
/// # Errors
/// As [`run`].
pub fn lead(
    spec: &AgentSpec,
    checkpoints: Box<dyn Checkpoints>,
    emit: &mut dyn FnMut(EventKind),
    headship: Headship,
) -> Result<Outcome, AgentError> {
    let Headship { guard, rendezvous, work, nodes: (least, most) } = headship;
    let means = Means::new(guard, spec.handle_signals)?;
    let broker = Broker::serve(&spec.socket_parent)?;
    let nodes = Nodes::new(broker, spec, Some((rendezvous, work)));
    let mut agent = Agent::new(spec, checkpoints, emit, (means, nodes))?;
    agent.nodes_min = least;
    agent.nodes_max = most;
    agent.state.mode = Mode::Gathering;
    agent.work()
}

/// Starts the process that ends all workers when this one is killed. Before anything that it must not inherit is opened.
///
/// # Errors
/// When the machine refuses it.
pub fn guard() -> Result<Guard, AgentError> {
    Guard::start(None, None).map_err(|source| AgentError::System { what: "start the guard process", source })
}

/// What a head has besides its own node.
#[derive(Debug)]
pub struct Headship {
    /// Started before the rendezvous.
    pub guard: Guard,
    /// Where the nodes meet; this one has joined it.
    pub rendezvous: Rc<Rendezvous>,
    /// The run, for the others.
    pub work: RunDescription,
    /// Nodes needed, and wanted.
    pub nodes: (u32, u32),
}

/// What any agent needs of its machine.
#[derive(Debug)]
pub(super) struct Means {
    pub(super) guard: Guard,
    pub(super) signals: Option<Signals>,
}

impl Means {
    pub(super) fn new(guard: Guard, handle_signals: bool) -> Result<Self, AgentError> {
        let handled = [&STOP_SIGNALS[..], &[Posix::SIGUSR1]].concat();
        let installed = if handle_signals { Signals::install(&handled) } else { Ok(None) };
        let signals = installed.map_err(|source| AgentError::System { what: "handle signals", source })?;
        Ok(Self { guard, signals })
    }
}

pub(super) struct Agent<'a> {
    pub(super) spec: &'a AgentSpec,
    pub(super) emit: &'a mut dyn FnMut(EventKind),
    /// Before the door, which waits for their answers when it closes.
    pub(super) callers: Callers,
    pub(super) sources: Sources,
    pub(super) guard: Guard,
    pub(super) store: Option<tcpstore::StoreHandle>,
    pub(super) kernels: Kernels,
    pub(super) pool: Pool,
    /// Workers wanted.
    pub(super) world: u32,
    /// The same as `enn resize` said it.
    pub(super) resized: Option<u32>,
    /// Nodes needed, and wanted.
    pub(super) nodes_min: u32,
    pub(super) nodes_max: u32,
    /// Number of the first round that this agent begins.
    pub(super) first_round: Round,
    /// It took over from another head, and no round has begun since.
    pub(super) heir: bool,
    /// How micro-batches are cut.
    pub(super) parts: Parts,
    /// Who waits for whom.
    pub(super) watch: Watch,
    /// How often people asked for something.
    pub(super) wishes: u64,
    /// The run is to be paused, since then.
    pub(super) paused: Option<Instant>,
    /// Hosts that were to be left when the head before was lost.
    pub(super) to_leave: Vec<String>,
    pub(super) state: RoundState,
    pub(super) history: History,
    /// The first signal, or wish, to stop that came to this node.
    pub(super) signalled: Option<Signal>,
    /// The first that came to any.
    pub(super) stop: Option<Signal>,
    /// Workers that were asked to end are killed then.
    pub(super) stop_by: Option<Instant>,
    /// Why the run ends as failed once the survivors have saved their state.
    pub(super) giving_up: Option<String>,
    pub(super) recovering: Option<Recovering>,
    /// How the run ends, once nobody is left.
    pub(super) verdict: Option<Ended>,
    pub(super) outcome: Outcome,
    /// The step after which training ended by itself.
    pub(super) trained: Option<u64>,
    /// The last checkpoint that could not be committed, and why.
    pub(super) failed_save: Option<(u64, String)>,
    pub(super) began: Instant,
}

impl<'a> Agent<'a> {
    pub(super) fn new(
        spec: &'a AgentSpec,
        checkpoints: Box<dyn Checkpoints>,
        emit: &'a mut dyn FnMut(EventKind),
        (means, nodes): (Means, Nodes),
    ) -> Result<Self, AgentError> {
        let Means { guard, signals } = means;
        let directory = nodes.broker.socket().parent().unwrap_or(&spec.socket_parent);
        let control = Control::open(directory, &spec.run_dir, &spec.host);
        let control = control.inspect_err(|error| {
            let message = format!("the run takes no requests (enn pause, enn resize, …): {error}");
            emit(EventKind::Warned { message });
        });
        let sources = Sources::new((nodes, control.ok()), Committer::start(checkpoints)?, signals);
        Ok(Self {
            spec,
            emit,
            callers: Callers::default(),
            sources,
            guard,
            store: None,
            kernels: Kernels::open(&spec.run_dir, &spec.worker.program),
            pool: Pool::default(),
            world: spec.world,
            resized: None,
            nodes_min: 1,
            nodes_max: 1,
            first_round: spec.first_round,
            heir: false,
            parts: Parts::default(),
            watch: Watch::default(),
            wishes: 0,
            paused: None,
            to_leave: Vec::new(),
            state: RoundState::new(spec.first_round, String::new(), 0, false),
            history: History::default(),
            signalled: None,
            stop: None,
            stop_by: None,
            giving_up: None,
            recovering: None,
            verdict: None,
            outcome: Outcome {
                ended: Ended::Finished,
                handed_over: false,
                restarts: 0,
                rounds: 0,
                metrics: None,
                checkpoint: None,
                unsaved: None,
                chunks: Vec::new(),
            },
            trained: None,
            failed_save: None,
            began: Instant::now(),
        })
    }

    pub(super) fn work(mut self) -> Result<Outcome, AgentError> {
        while self.verdict.is_none() || !self.is_empty() {
            let deadline = self.deadline();
            let children = self.pool.children();
            let events = self.sources.wait(&children, deadline)?;
            for event in events {
                self.handle(event)?;
            }
            self.serve_callers()?;
            self.advance()?;
        }
        self.callers.dismiss();
        if let Some(ended) = self.verdict.take() {
            self.outcome.ended = ended;
        }
        self.outcome.unsaved = self.unsaved();
        self.sources.nodes.close_all()?;
        self.farewell();
        self.outcome.chunks.sort_by_key(|chunk| chunk.start);
        Ok(self.outcome)
    }

    /// Why the state with which training ended is in no checkpoint, if it is in none.
    fn unsaved(&mut self) -> Option<String> {
        let trained = self.trained.filter(|_| self.outcome.ended == Ended::Finished)?;
        let saved = self.outcome.checkpoint.as_ref().map(|(step, _)| *step);
        if saved >= Some(trained) {
            return None;
        }
        let why = self.failed_save.take().filter(|(step, _)| *step == trained);
        let why = why.map_or_else(|| "its shares did not come together".to_owned(), |(_, error)| error);
        let stands =
            saved.map_or_else(|| "there is no checkpoint".to_owned(), |saved| format!("that of step {saved} stands"));
        Some(format!(
            "training ended, but the checkpoint of its last step {trained} could not be written ({stands}): {why}"
        ))
    }

    /// Nobody lives and nothing is being committed.
    pub(super) fn is_empty(&self) -> bool {
        self.pool.is_empty() && self.sources.committer.pending == 0
    }

    /// Whether survivors keep their state.
    pub(super) fn reforms(&self) -> bool {
        self.spec.policy == Recovery::Reform
    }

    /// Whether the workers are to save and end.
    pub(super) fn is_stopping(&self) -> bool {
        self.stop.is_some() || self.giving_up.is_some()
    }

    fn handle(&mut self, event: Event) -> Result<(), AgentError> {
        match event {
            Event::Signalled(signal) => {
                let second = Signal::is_second(self.signalled);
                self.signalled.get_or_insert(signal);
                self.signalled(signal, second)?;
            }
            Event::Ended { worker, late } => self.ended(worker, late)?,
            Event::Spoken => {
                while let Some(event) = self.sources.nodes.broker.event() {
                    self.spoken(event)?;
                }
            }
            Event::News => self.hear()?,
            Event::Committed => {
                while let Some(verdict) = self.sources.committer.verdict() {
                    let step = verdict.step;
                    match verdict.result {
                        Ok(committed) => self.committed(committed, (verdict.seconds, verdict.blocked))?,
                        Err(error) => self.abandoned(step, error.to_string())?,
                    }
                }
            }
            Event::Asked => self.called(),
            Event::TimeUp => self.time_up()?,
        }
        Ok(())
    }

    /// A signal came to a node; `second`: not the first to that one. All nodes of a job get one at the same time.
    pub(super) fn signalled(&mut self, signal: Signal, second: bool) -> Result<(), AgentError> {
        (self.emit)(EventKind::StopRequested { signal: signal.name().into(), second });
        if self.stop.is_none() {
            self.stop = Some(signal);
            self.wished();
        }
        if second {
            self.kill();
        } else if !self.state.mode.is_last() && self.stop_by.is_none() {
            self.ask_to_stop()?;
        }
        Ok(())
    }

    /// The workers of the round are to save and end, and spares to end.
    pub(super) fn ask_to_stop(&mut self) -> Result<(), AgentError> {
        let now = Instant::now();
        self.stop_by = Some(now + self.spec.grace);
        if let Mode::Regrouping(_) = self.state.mode {
            // Those who left already are given seats again when the others have left too.
            self.pool.ask_to_regroup(false);
            self.state.mode = Mode::Working;
        }
        self.pool.ask_to_stop();
        for (home, spare) in self.pool.send_spares_away(now) {
            self.sources.nodes.dismiss(home, spare)?;
        }
        Ok(())
    }

    pub(super) fn ended(&mut self, id: WorkerId, late: Duration) -> Result<(), AgentError> {
        let began = Instant::now();
        let Some(worker) = self.pool.get_mut(id) else { return Ok(()) };
        let Some(exit) = worker.child.reap(&mut self.guard) else { return Ok(()) };
        let seconds_to_notice = (late + began.elapsed()).as_secs_f64();
        // How a process ended on a node that is gone nobody knows.
        let lost = worker.child.there().is_some_and(|far| far.is_lost());
        let (code, signal) = if lost { (None, None) } else { exit.code_or_signal() };
        let rank = worker.rank();
        let pid = worker.child.pid();
        let round = self.state.round;
        let home = worker.slot.home;
        let forgiven = worker.dismissed || exit == Exit::Code(0);
        if let Some(rank) = rank {
            if self.reforms() && self.state.mode.is_under_way() && !forgiven {
                // Before anything slow: the others may wait for it in a collective.
                self.state.suspect(id, began);
                self.leave(format!("rank {rank} ended"))?;
            }
            (self.emit)(EventKind::WorkerExited { round, rank, pid, code, signal, seconds_to_notice });
        }
        // Its last words may still be in the socket: it is judged when the broker has read them.
        self.sources.nodes.sync(home, id)
    }

    /// The worker's process is gone and everything it said has been heard.
    pub(super) fn judge(&mut self, id: WorkerId) -> Result<(), AgentError> {
        // A token of a worker that was judged, or of nobody.
        let Some(worker) = self.pool.take(id) else { return Ok(()) };
        self.sources.nodes.dismiss(worker.slot.home, id)?;
        let Some(rank) = worker.rank() else { return self.spare_ended(&worker) };
        let evidence = worker.evidence(rank);
        self.accuse(&evidence)?;
        self.state.reached = self.state.reached.max(evidence.step);
        if self.state.mode.is_last() {
            return Ok(());
        }
        if worker.dismissed || cause::succeeded(&evidence) {
            self.state.finished += 1;
            self.state.stopped |= !matches!(worker.done, Some((_, false)));
            return Ok(());
        }
        self.fail(id, &evidence)
    }

    /// A process without a seat is gone.
    fn spare_ended(&mut self, worker: &Worker) -> Result<(), AgentError> {
        if let Place::Dismissed(round, rank) = worker.place {
            (self.emit)(EventKind::WorkerDismissed { round, rank, pid: worker.child.pid() });
            return Ok(());
        }
        let sent_away = (worker.kill_at.is_some() && worker.words.is_none()) || self.state.mode.is_last();
        let (code, signal) = worker.child.exit().map_or((None, None), Exit::code_or_signal);
        (self.emit)(EventKind::SpareEnded { pid: worker.child.pid(), code, signal });
        self.accuse(&worker.evidence(Rank(worker.slot.index.0)))?;
        if !sent_away && self.pool.spare_lost(Instant::now()) {
            let words = worker.words.clone().unwrap_or_else(|| worker.child.stderr_tail());
            let message = format!("spares die before they are warm; no more are started: {}", words.trim());
            (self.emit)(EventKind::Warned { message });
        }
        Ok(())
    }

    /// A worker with a seat failed: it is the cause if it is the first, and the round ends.
    pub(super) fn fail(&mut self, id: WorkerId, evidence: &Evidence) -> Result<(), AgentError> {
        if self.state.mode.is_last() {
            return Ok(());
        }
        let now = Instant::now();
        self.accuse(evidence)?;
        self.state.suspect(id, now);
        if self.state.culprit == Some(id) && self.state.cause.is_none() {
            self.state.cause = Some(cause::sentence(evidence));
        }
        if self.reforms() {
            self.pool.send_away(id, now);
            let reason = self.state.cause.clone().unwrap_or_default();
            return self.leave(reason.lines().next().unwrap_or_default().to_owned());
        }
        self.state.mode = Mode::Ending(now + FAILED_GRACE);
        self.pool.signal_all(Posix::SIGTERM);
        // A worker ends itself at once when its socket closes, however deep it waits in a collective.
        self.sources.nodes.close_all()
    }

    /// The same for a worker that lives.
    pub(super) fn fail_living(&mut self, id: WorkerId) -> Result<(), AgentError> {
        let worker = self.pool.get(id);
        match worker.and_then(|worker| Some(worker.evidence(worker.rank()?))) {
            Some(evidence) => self.fail(id, &evidence),
            None => Ok(()),
        }
    }

    /// Ends the round for all who live in it.
    pub(super) fn leave(&mut self, reason: String) -> Result<(), AgentError> {
        if self.state.mode.is_under_way() {
            self.sources.nodes.end_round(&reason)?;
            self.pool.unseat_strangers();
            self.state.mode = Mode::Halting(Some(Instant::now() + HALT_WAIT_MAX));
        }
        Ok(())
    }

    /// Quarantines the kernel that a worker died in, if it did.
    fn accuse(&mut self, evidence: &Evidence) -> Result<(), AgentError> {
        match kernels::accused(evidence) {
            Some(fault) => self.kernel_faulted(evidence.rank, fault),
            None => Ok(()),
        }
    }

    /// A kernel is out of use: on disk, in the journal, and for all workers.
    pub(super) fn kernel_faulted(&mut self, rank: Rank, fault: KernelFault) -> Result<(), AgentError> {
        let Some(entry) = self.kernels.faulted(fault) else { return Ok(()) };
        self.sources.committer.write(self.kernels.file());
        (self.emit)(EventKind::KernelQuarantined { rank, entry: Box::new(entry) });
        self.sources.nodes.tell_all(&ToWorker::Kernels(Box::new(self.kernels.told())))
    }

    fn committed(&mut self, committed: Committed, (seconds, blocked): (f64, f64)) -> Result<(), AgentError> {
        let Committed { step, path, bytes, metric } = committed;
        self.outcome.checkpoint = Some((step, path.clone()));
        self.sources.nodes.tell_all(&ToWorker::Committed { step, path: path.clone() })?;
        self.sources.committer.abandon(self.state.attempt.clone(), step);
        (self.emit)(EventKind::CheckpointCommitted { step, path, bytes, seconds, metric, blocked_seconds: blocked });
        Ok(())
    }

    pub(super) fn abandoned(&mut self, step: u64, error: String) -> Result<(), AgentError> {
        self.sources.nodes.tell_all(&ToWorker::Abandoned { step, error: error.clone() })?;
        // Shares of earlier steps that were abandoned hold room that the next checkpoint needs; those of this one may still be
        // written.
        self.sources.committer.abandon(self.state.attempt.clone(), step);
        self.failed_save = Some((step, error.clone()));
        (self.emit)(EventKind::CheckpointFailed { step, error });
        Ok(())
    }

    /// The next moment at which something must be done.
    fn deadline(&self) -> Option<Instant> {
        let mode = self.state.mode;
        let under_way = mode.is_under_way();
        let worker = if under_way { self.pool.deadline(self.spec.grace) } else { None };
        let stop = self.stop_by.filter(|_| !mode.is_last());
        let hang = self.patience().map(|(patience, _)| Instant::now() + patience);
        let spare = self.next_spare();
        let look = self.next_look(Instant::now());
        let stuck = self.next_stuck();
        let kill = self.pool.next_kill();
        let caller = self.callers.deadline();
        [mode.deadline(), kill, worker, stop, hang, spare, look, stuck, caller].into_iter().flatten().min()
    }

    /// Time until the workers will have been silent for too long, and their pulses.
    fn patience(&self) -> Option<(Duration, Vec<hang::Pulse>)> {
        let limit = self.spec.hang_timeout?;
        if !self.state.mode.is_under_way() || !self.pool.all_ready() || self.pool.all_halted() {
            return None;
        }
        let now = Instant::now();
        let now_ns = unix::monotonic_ns();
        let pulses: Vec<_> = self.pool.seated().filter_map(|worker| worker.pulse(now, now_ns)).collect();
        Some((hang::patience(&pulses, limit), pulses))
    }

    fn time_up(&mut self) -> Result<(), AgentError> {
        let now = Instant::now();
        self.pool.kill_late(now);
        self.lose_stuck(now)?;
        if self.stop_by.is_some_and(|at| at <= now) && !self.state.mode.is_last() {
            let message = format!("workers did not end within {:.1} s and were killed", self.spec.grace.as_secs_f64());
            (self.emit)(EventKind::Warned { message });
            self.kill();
        }
        match self.state.mode {
            Mode::Working | Mode::Regrouping(_) => {
                self.look(now);
                self.overdue(now)?;
                self.hung()?;
                if matches!(self.state.mode, Mode::Regrouping(at) if at <= now) {
                    self.leave("the workers did not leave it together".into())?;
                }
            }
            Mode::Halting(Some(at)) if at <= now => self.not_halted(),
            Mode::Ending(at) | Mode::Closing(at) if at <= now => self.kill(),
            _ => {}
        }
        Ok(())
    }

    /// Workers that did not do in time what they had to.
    fn overdue(&mut self, now: Instant) -> Result<(), AgentError> {
        for (id, accusation) in self.pool.overdue(self.spec.grace, now) {
            let Some(worker) = self.pool.get_mut(id) else { continue };
            let name = worker.rank().map_or_else(|| "a spare".to_owned(), |rank| format!("rank {rank}"));
            if accusation.is_empty() {
                let message = format!("{name} finished but did not end; it was killed");
                (self.emit)(EventKind::Warned { message });
                worker.dismissed = true;
                worker.child.signal(Posix::SIGKILL);
                continue;
            }
            worker.words.get_or_insert(accusation);
            match &worker.place {
                Place::Seat(_) => self.fail_living(id)?,
                Place::Spare | Place::Dismissed(..) => self.pool.send_away(id, now),
            }
        }
        Ok(())
    }

    /// Takes one worker for dead when none makes progress.
    fn hung(&mut self) -> Result<(), AgentError> {
        let Some((Duration::ZERO, pulses)) = self.patience() else { return Ok(()) };
        let Some(accused) = hang::accused(&pulses) else { return Ok(()) };
        let seconds = accused.silent.as_secs_f64();
        (self.emit)(EventKind::HangDetected { round: self.state.round, seconds, stacks: None });
        if let Some(worker) = self.pool.get_mut(accused.worker) {
            let what = accused.phase.words();
            let step = accused.step;
            let words = format!("made no progress for {seconds:.0} s, nor did the others, while {what} (step {step})");
            worker.words.get_or_insert(words);
            // It would not hear a TERM.
            worker.child.signal(Posix::SIGKILL);
        }
        self.fail_living(accused.worker)
    }

    /// Kills who did not leave the round in time.
    fn not_halted(&mut self) {
        self.state.mode = Mode::Halting(None);
        let late: Vec<WorkerId> =
            self.pool.seated().filter(|worker| !worker.stands()).map(|worker| worker.id).collect();
        for id in late {
            let Some(worker) = self.pool.get_mut(id) else { continue };
            worker.dismissed |= worker.done.is_some();
            let words = format!("did not leave the round within {} s of its end", HALT_WAIT_MAX.as_secs());
            worker.words.get_or_insert(words);
            worker.child.signal(Posix::SIGKILL);
        }
    }

    /// Kills everybody: the run ends, or all start again.
    pub(super) fn kill(&mut self) {
        self.state.mode = Mode::Killed;
        self.pool.signal_all(Posix::SIGKILL);
    }
}
