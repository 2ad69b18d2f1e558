//! Carries out what the node state decides about programs, and tells it what happens: processes, output, fork server and signals.
//!
//! **Invariant:** the thread that owns this starts all workers, since they die with the thread that forked them.

use super::{
    program_start::ProgramStart,
    program_worker::{self, Means, NotStarted, ProgramWorker, ScriptPage},
    readers::{self, Requests},
    script_services::Scripts,
    spec::GroupSpec,
    watchdog::{Expired, Watchdog},
};
use crate::node_agent::{
    background::{Inbox, collect_stacks},
    effect::{EndSignal, NodeEffect, ProgramRound},
    error::AgentError,
    input::NodeInput,
    program_ranks::Ranks,
    shell::{NodeShell, NodeSource},
};
use enn_common::{
    event::EventKind,
    id::WorkerId,
    wire::node_agent::{WorkerEvidence, WorkerExit, WorkerProgress},
};
use enn_process::{
    Cgroup, Guard, Mark, Signals,
    logs::Pump,
    preload::{Ready, Starter},
    stacks::StackTarget,
};
use nix::sys::signal::Signal;
use std::{
    collections::BTreeMap,
    os::fd::BorrowedFd,
    path::Path,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Longest wait for output that is still in the pipes of workers that ended.
const SETTLE_MAX: Duration = Duration::from_millis(250);
/// Longest wait for a timer.
const TIMER_WAIT_MAX: Duration = Duration::from_secs(3600);

/// Returns the time as workers know it.
fn seconds_since_epoch() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// The impure half of a node agent that runs programs.
pub(crate) struct ProgramShell {
    pub(super) spec: GroupSpec,
    /// Set where the workers may attach.
    pub(crate) scripts: Option<Scripts>,
    pub(super) pump: Pump,
    pub(super) guard: Guard,
    pub(super) starter: Starter,
    /// The workers wait for the fork server, as far as the node state knows.
    is_loading: bool,
    pub(super) mark: Mark,
    pub(super) cgroup: Option<Cgroup>,
    signals: Option<Signals>,
    watchdog: Option<Watchdog>,
    /// Workers of the present round, and spares.
    pub(super) workers: BTreeMap<WorkerId, ProgramWorker>,
    pub(super) round: u64,
    /// Last sign of progress of any worker, and the last output that was seen then.
    progress_at: Instant,
    outputs: Option<Instant>,
    pub(super) answers: Inbox<NodeInput>,
    /// Inputs that follow at once from effects.
    pub(super) pending: Vec<NodeInput>,
    /// The machine refused something that the launcher needs.
    pub(crate) failure: Option<AgentError>,
}

impl ProgramShell {
    /// Starts what every round needs: the guard first, for it must not inherit what comes after.
    pub(crate) fn new(spec: &GroupSpec) -> Result<Self, AgentError> {
        let system = |what| move |source| AgentError::System { what, source };
        let mark = Mark::new(spec.inherited_mark.as_deref());
        let cgroup = (!spec.leave_background).then(|| Cgroup::create(&format!("enn-{}", mark.own())));
        let cgroup =
            cgroup.transpose().inspect_err(|error| tracing::debug!(%error, "no control group for the workers"));
        let cgroup = cgroup.ok().flatten();
        // What may be left behind is not the guard's: it ends the workers with their groups.
        let guarded = Some(&mark).filter(|_| !spec.leave_background);
        let mut guard = Guard::start(guarded, cgroup.as_ref()).map_err(system("start the guard process"))?;
        enn_process::adopt_orphans().map_err(system("adopt orphaned processes"))?;
        let mut handled = spec.signals.clone();
        let own = [Signal::SIGCHLD, Signal::SIGUSR1, Signal::SIGWINCH];
        handled.extend(own.iter().filter(|signal| !spec.signals.contains(signal)));
        let signals = Signals::install(&handled).map_err(system("handle signals"))?;
        let progress_dir = program_worker::progress_dir(&spec.run_dir);
        progress_dir.map_err(system("make the directory for progress files"))?;
        let starter = match &spec.preload {
            Some(preload) => {
                Starter::fork(preload.clone(), &program_worker::common_command(spec, 0), &spec.run_dir, &mut guard)
            }
            None => Starter::execute(),
        };
        let pump = Pump::start(spec.logs.clone())?;
        let watchdog = spec.timer_file.as_deref().map(Watchdog::start).transpose();
        let watchdog = watchdog.map_err(system("make the pipe of TORCHELASTIC_TIMER_FILE"))?;
        Ok(Self {
            spec: spec.clone(),
            scripts: None,
            pump,
            guard,
            is_loading: starter.is_loading(),
            starter,
            mark,
            cgroup,
            signals,
            watchdog,
            workers: BTreeMap::new(),
            round: 0,
            progress_at: Instant::now(),
            outputs: None,
            answers: Inbox::new()?,
            pending: Vec::new(),
            failure: None,
        })
    }

    /// Returns whether the first workers wait for the fork server.
    pub(crate) fn is_loading(&self) -> bool {
        self.is_loading
    }

    fn timer_at(&self, now: Instant) -> Option<Instant> {
        let left = self.watchdog.as_ref()?.next()? - seconds_since_epoch();
        // One that is further away than that is looked at again.
        let left = Duration::try_from_secs_f64(left.max(0.0)).unwrap_or(TIMER_WAIT_MAX).min(TIMER_WAIT_MAX);
        now.checked_add(left)
    }

    /// Returns what a signal asks of the node.
    fn signalled(&mut self, signal: Signal) -> Option<NodeInput> {
        match signal {
            Signal::SIGCHLD => {
                let works = |pid| self.workers.values().any(|worker| worker.process.pid() == pid);
                enn_process::reap_orphans(|pid| works(pid) || self.own_processes().any(|own| own == pid));
                None
            }
            Signal::SIGWINCH if !self.spec.signals.contains(&Signal::SIGWINCH) => {
                self.pump.resize();
                None
            }
            signal if self.scripts.is_some() => self.stop_scripts(signal),
            signal => Some(NodeInput::ProgramSignal(signal)),
        }
    }

    fn reap(&mut self, worker: WorkerId, late: Duration) -> Option<NodeInput> {
        let began = Instant::now();
        let known = self.workers.get_mut(&worker)?;
        let exit = known.reap(&mut self.guard, self.spec.leave_background)?;
        let (code, signal) = exit.code_or_signal();
        let page = progress(worker, known, Duration::ZERO);
        Some(NodeInput::Exited { worker, exit: WorkerExit { code, signal, late: late + began.elapsed(), page } })
    }

    /// Returns the children of the launcher that are no workers.
    fn own_processes(&self) -> impl Iterator<Item = u32> {
        self.starter.pids().chain([self.guard.pid()])
    }
}

impl NodeShell for ProgramShell {
    fn descriptors(&self) -> Vec<(NodeSource, BorrowedFd<'_>)> {
        let signals = self.signals.iter().map(|signals| (NodeSource::Signals, signals.fd()));
        let living = self.workers.iter().filter(|(_, worker)| worker.process.exit().is_none());
        let living = living.map(|(id, worker)| (NodeSource::Process(*id), worker.process.pidfd()));
        let timers = self.watchdog.iter().map(|watchdog| (NodeSource::Timers, watchdog.fd()));
        let server = self.starter.fds().into_iter().map(|fd| (NodeSource::ForkServer, fd));
        let broker = self.scripts.iter().map(|scripts| (NodeSource::Broker, scripts.broker.fd()));
        let answers = (NodeSource::Answers, self.answers.fd());
        signals.chain(living).chain(timers).chain(server).chain(broker).chain([answers]).collect()
    }

    fn socket_directory(&self) -> Option<&Path> {
        self.scripts.as_ref()?.broker.broker().socket().parent()
    }

    fn unread(&self) -> Option<NodeSource> {
        self.scripts.as_ref().filter(|scripts| scripts.broker.has_more()).map(|_| NodeSource::Broker)
    }

    /// Returns when the fork server or a timer of a worker is due.
    fn deadline(&self, now: Instant) -> Option<Instant> {
        [self.starter.deadline(), self.timer_at(now)].into_iter().flatten().min()
    }

    fn time_up(&mut self, inputs: &mut Vec<NodeInput>) {
        let now = Instant::now();
        if self.starter.deadline().is_some_and(|at| at <= now) {
            self.read(NodeSource::ForkServer, Duration::ZERO, inputs);
        }
        if self.timer_at(now).is_some_and(|at| at <= now) {
            self.look_at_timers(inputs);
        }
    }

    fn read(&mut self, source: NodeSource, late: Duration, inputs: &mut Vec<NodeInput>) {
        match source {
            NodeSource::Signals => {
                let signals = self.signals.as_mut().map(Signals::take).unwrap_or_default();
                for signal in signals {
                    inputs.extend(self.signalled(signal));
                }
            }
            NodeSource::Process(worker) => inputs.extend(self.reap(worker, late)),
            NodeSource::ForkServer => {
                self.starter.advance(&mut self.guard);
                self.tell_start();
                self.start_waiting();
                inputs.append(&mut self.pending);
            }
            NodeSource::Timers => self.look_at_timers(inputs),
            NodeSource::Answers => inputs.extend(self.answers.take()),
            NodeSource::Broker => self.read_broker(inputs),
        }
    }

    fn carry_out(&mut self, effect: NodeEffect, inputs: &mut Vec<NodeInput>) {
        match effect {
            NodeEffect::StartPrograms(round) => self.start(&round),
            NodeEffect::FindCause => {
                let workers: Vec<&ProgramWorker> = self.workers.values().collect();
                let failure = program_worker::root_cause(&self.spec, self.round, &workers);
                self.pending.extend(failure.map(|failure| NodeInput::CauseFound(Box::new(failure))));
            }
            NodeEffect::ClearGroup { keep_background } => self.clear(keep_background),
            NodeEffect::Signal { worker, signal } => self.signal(worker, signal),
            NodeEffect::ReadEvidence { worker } if self.scripts.is_none() => {
                let evidence = WorkerEvidence::default();
                self.pending.push(NodeInput::Evidence { worker, evidence, gpu: None });
            }
            NodeEffect::CollectStacks { round, workers, limit } => self.collect_stacks(round, &workers, limit),
            NodeEffect::ReadPages => self.look_for_progress(),
            // About workers that may attach, their broker and their checkpoints.
            NodeEffect::LookAtRun(_)
            | NodeEffect::ReadEvidence { .. }
            | NodeEffect::Admit { .. }
            | NodeEffect::Spawn { .. }
            | NodeEffect::SetFlag { .. }
            | NodeEffect::Seat { .. }
            | NodeEffect::EndRound { .. }
            | NodeEffect::Broadcast(_)
            | NodeEffect::Disconnect { .. }
            | NodeEffect::DisconnectAll
            | NodeEffect::SyncBroker { .. }
            | NodeEffect::Forget { .. }
            | NodeEffect::LinkLogs { .. }
            | NodeEffect::Persist { .. }
            | NodeEffect::Release { .. }
            | NodeEffect::Keep { .. } => self.carry_out_for_scripts(effect),
            // The owner loop's.
            NodeEffect::Report(_)
            | NodeEffect::Journal(_)
            | NodeEffect::CutLink { .. }
            | NodeEffect::RejoinMembership
            | NodeEffect::LeaveMembership { .. }
            | NodeEffect::FinishMembership { .. }
            | NodeEffect::Lead { .. }
            | NodeEffect::End(_) => {}
        }
        inputs.append(&mut self.pending);
    }
}

impl ProgramShell {
    /// Starts the workers of a round; forked ones begin together.
    fn start(&mut self, round: &ProgramRound) {
        self.round = round.plan.round;
        self.progress_at = Instant::now();
        self.workers.clear();
        let mut is_behind_failure = false;
        for (worker, ranks) in round.workers.iter().copied().zip(Ranks::of_node(&round.plan)) {
            if is_behind_failure {
                self.pending.push(NodeInput::ProgramNotStarted { worker, failure: None });
                continue;
            }
            let means = Means {
                pump: &self.pump,
                guard: &mut self.guard,
                mark: &self.mark,
                cgroup: self.cgroup.as_ref(),
                starter: &mut self.starter,
            };
            match ProgramWorker::start(&self.spec, &ProgramStart::of_round(round, ranks), means) {
                Ok(started) => {
                    let pid = started.process.pid();
                    let forked = started.is_held();
                    self.pending.push(NodeInput::ProgramSpawned { worker, pid, forked });
                    self.workers.insert(worker, started);
                }
                Err(NotStarted::Program(failure)) => {
                    is_behind_failure = true;
                    self.pending.push(NodeInput::ProgramNotStarted { worker, failure: Some(failure) });
                }
                Err(NotStarted::Machine(error)) => return self.failure = Some(error),
            }
        }
        if !is_behind_failure {
            self.workers.values_mut().for_each(ProgramWorker::release);
        }
        self.tell_start();
    }

    /// Tells what there is to say of how the workers are started, and whether they wait for it.
    pub(super) fn tell_start(&mut self) {
        if let Some(Ready { modules, seconds, warm, .. }) = self.starter.take_ready() {
            self.pending.push(NodeInput::Notice(EventKind::Preloaded { modules, seconds, warm }));
        }
        self.pending.extend(self.starter.take_messages().into_iter().map(warning));
        let is_loading = self.starter.is_loading();
        if std::mem::replace(&mut self.is_loading, is_loading) != is_loading {
            self.pending.push(NodeInput::ForkServer { is_loading });
        }
    }

    fn signal(&mut self, worker: WorkerId, signal: EndSignal) {
        let stopped_by = self.note_signalled(worker);
        let Some(worker) = self.workers.get(&worker) else { return };
        let signal = match (signal, stopped_by) {
            (EndSignal::Terminate, Some(asked)) if !worker.is_spare => EndSignal::Request(asked),
            (signal, _) => signal,
        };
        match signal {
            EndSignal::Terminate => worker.process.signal(Signal::SIGTERM),
            EndSignal::Kill => worker.process.signal(Signal::SIGKILL),
            // SIGUSR1 says that the time limit is near: programs that do not know it are asked to end.
            EndSignal::Request(Signal::SIGUSR1) => worker.ask_to_stop(Signal::SIGUSR1),
            EndSignal::Request(signal) => worker.process.signal(signal),
        }
    }

    /// After a round's workers: what they left behind is killed, unless it may live on; what they wrote is shown.
    pub(crate) fn clear(&mut self, keep_background: bool) {
        if !keep_background {
            if let Some(cgroup) = &self.cgroup {
                cgroup.kill();
            }
            let own: Vec<u32> = self.own_processes().collect();
            enn_process::sweep(&self.mark, &own);
        }
        self.pump.settle(Instant::now() + SETTLE_MAX);
        self.pending.extend(self.pump.take_errors().iter().map(|trouble| warning(trouble.to_string())));
        self.workers.clear();
    }

    /// Looks for output and touched files since the last look.
    fn look_for_progress(&mut self) {
        let outputs = self.pump.last_output();
        // Every file is looked at, so that none counts twice.
        let touched = self.workers.values_mut().filter_map(|worker| worker.progressed().then_some(())).count() > 0;
        if outputs != self.outputs || touched {
            self.outputs = outputs;
            self.progress_at = Instant::now();
        }
        let idle = self.progress_at.elapsed();
        let living = self.workers.iter().filter(|(_, worker)| worker.process.exit().is_none());
        let pages = living.map(|(id, worker)| progress(*id, worker, idle)).collect();
        self.pending.push(NodeInput::Pages(pages));
    }

    fn collect_stacks(&mut self, round: u64, workers: &[WorkerId], limit: Duration) {
        let asked = workers.iter().filter_map(|worker| self.workers.get(worker));
        let living = asked.filter(|worker| worker.process.exit().is_none());
        let targets: Vec<StackTarget> =
            living.map(|worker| StackTarget { rank: worker.ranks.rank, pid: worker.process.pid() }).collect();
        let dir = self.spec.run_dir.join("stacks").join(round.to_string());
        let answers = self.answers.sender();
        let answer = move |collected| answers.send(collected);
        self.pending.extend(collect_stacks(round, targets, dir, limit, answer));
    }

    /// Ends the workers that are still in a part of their program that they wanted to have left by now.
    fn look_at_timers(&mut self, inputs: &mut Vec<NodeInput>) {
        let Some(watchdog) = &mut self.watchdog else { return };
        let wrong = watchdog.read().into_iter();
        inputs.extend(wrong.map(|wrong| warning(format!("a worker's timer cannot be understood: {wrong}"))));
        let workers = &self.workers;
        let mark = &self.mark;
        let works = |pid| workers.values().any(|worker| worker.process.pid() == pid && worker.process.exit().is_none());
        watchdog.forget(|pid| works(pid) || mark.is_carried_by(pid));
        for Expired { pid, scope, signal } in watchdog.expired(seconds_since_epoch()) {
            let worker = workers.values().find(|worker| worker.process.pid() == pid);
            let who = worker.map_or_else(String::new, |worker| format!("rank {}, ", worker.ranks.rank));
            let signal = Signal::try_from(signal).ok();
            let then = signal.map_or("it named no signal".to_owned(), |signal| format!("it gets {signal}"));
            inputs.push(warning(format!("the timer \"{scope}\" of {who}pid {pid} has expired: {then}")));
            if let Some(signal) = signal {
                enn_process::signal_one(pid, signal);
            }
        }
    }

    /// Ends the fork server and all workers, and waits until what they wrote is shown. Returns the signals that came before and meanwhile.
    pub(crate) fn end(&mut self, requests: Requests, emit: &mut dyn FnMut(EventKind)) -> Result<Requests, AgentError> {
        self.starter.end(&mut self.guard);
        // After an error some may live; they are killed before their last output is waited for.
        self.workers.clear();
        let waited = readers::wait(&self.pump, self.signals.as_mut(), requests, emit);
        let source = |source| AgentError::System { what: "wait for the readers of the output", source };
        let waited = waited.map_err(source)?;
        for trouble in self.pump.take_errors() {
            emit(EventKind::Warned { message: trouble.to_string() });
        }
        Ok(waited)
    }

    /// Returns the bytes of output that were not written, because a second signal ended the wait for their reader.
    pub(crate) fn output_lost(&self) -> u64 {
        self.pump.lost()
    }
}

fn warning(message: String) -> NodeInput {
    NodeInput::Notice(EventKind::Warned { message })
}

/// Returns what is known of a worker that has no control page. `idle` is the time since any of them showed a sign of progress.
fn progress(id: WorkerId, worker: &ProgramWorker, idle: Duration) -> WorkerProgress {
    let ScriptPage { phase, step, at } = worker.page;
    WorkerProgress { worker: id, phase: phase as u32, step, waited: Duration::ZERO, idle: idle.min(at.elapsed()) }
}
