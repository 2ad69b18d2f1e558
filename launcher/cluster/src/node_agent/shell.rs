//! Carries out what the node state decides, and tells it what happens: processes, control pages, broker, logs and signals of a node.
//!
//! **Invariant:** the thread that owns this starts all workers, since they die with the thread that forked them. What may wait for a disk
//! is done by other threads, but for the log files of a worker that starts.

use super::{
    background::{Inbox, JobThread, collect_stacks},
    effect::{EndSignal, NodeEffect, NodeEnd},
    environment::{Identity, StoreAddress},
    error::AgentError,
    evidence,
    input::NodeInput,
    process::WorkerProcess,
    snapshots::{KeptSnapshot, SnapshotName, Snapshots, Writing},
    view::check_view,
};
use crate::{
    rendezvous::{NodeId, Rendezvous},
    transport,
};
use enn_broker::{Broker, BrokerError, BrokerEvent, RoundPlan};
use enn_common::{
    checkpoint::table::ShardTable,
    event::EventKind,
    id::{Round, WorkerId},
    wire::{
        message::{Assignment, Standby},
        node_agent::{
            Epoch, NodeEvent, RunFacts, RunSnapshot, SeatFacts, StopSignal, WorkerEvidence, WorkerFlag, WriteFailure,
        },
    },
};
use enn_process::{Guard, Signals, WorkerSpec, stacks::StackTarget, wait_ready};
use nix::{
    poll::{PollFd, PollFlags},
    sys::signal::Signal,
};
use std::{
    collections::BTreeMap,
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
    rc::Rc,
    time::{Duration, Instant},
};

/// Longest wait for jobs under way at the end: a disk that hangs holds no launcher.
const JOBS_END_MAX: Duration = Duration::from_secs(2);
/// Longest wait for processes that were sent SIGKILL at the end.
const KILLED_WAIT_MAX: Duration = Duration::from_secs(2);
/// Broker events that are read before anything else is looked at: a worker that floods the broker must not hide a signal.
const BROKER_EVENTS_MAX: usize = 1024;
/// Longest wait for the logs of a worker to appear in the directory of its round. Whoever hears of the round finds them there, unless the
/// disk is slow.
const LOGS_WAIT_MAX: Duration = Duration::from_millis(100);

/// Possessions of a node agent.
pub(crate) struct NodeParts {
    pub(crate) worker: WorkerSpec,
    pub(crate) guard: Guard,
    pub(crate) signals: Option<Signals>,
    pub(crate) broker: Broker,
    /// Membership of a run over several nodes.
    pub(crate) rendezvous: Option<Rc<Rendezvous>>,
    /// Store of a run on one node.
    pub(crate) store: Option<StoreAddress>,
    /// Run directory, where it is known already.
    pub(crate) run_dir: Option<PathBuf>,
}

/// An effect of the node state that is not about this machine.
#[derive(Debug)]
pub(crate) enum Outward {
    Report(NodeEvent),
    Journal(Box<EventKind>),
    Lead(Box<LeadOrder>),
    End(NodeEnd),
}

/// Membership and state of the run that this node is to lead.
#[derive(Debug)]
pub(crate) struct LeadOrder {
    pub(crate) epoch: Epoch,
    pub(crate) members: Vec<NodeId>,
    pub(crate) snapshot: RunSnapshot,
    pub(crate) facts: RunFacts,
}

/// A descriptor of the node agent that became ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NodeSource {
    Signals,
    Process(WorkerId),
    Broker,
    Answers,
    /// Of programs.
    ForkServer,
    Timers,
}

/// Answers of the node agent's threads.
#[derive(Debug)]
enum Answer {
    RunSeen(Result<(), String>),
    Evidence { worker: WorkerId, evidence: WorkerEvidence },
    Written { name: SnapshotName, unwritten: Option<KeptSnapshot>, result: Result<ShardTable, WriteFailure> },
    Stacks { round: u64, dir: PathBuf, summary: Vec<String> },
}

/// The impure half of a node agent.
pub(crate) struct NodeShell {
    worker: WorkerSpec,
    guard: Guard,
    signals: Option<Signals>,
    /// Ends after the processes, which are connected to it.
    processes: BTreeMap<WorkerId, WorkerProcess>,
    broker: Broker,
    /// More events of the broker may wait, of which its descriptor says nothing.
    has_broker_events: bool,
    rendezvous: Option<Rc<Rendezvous>>,
    store: Option<StoreAddress>,
    run_dir: Option<PathBuf>,
    snapshots: Snapshots,
    answers: Inbox<Answer>,
    /// Reads and links: small jobs, which do not wait for shards.
    reader: JobThread,
    /// Writes shards.
    writer: JobThread,
    /// Inputs that follow at once from effects.
    pending: Vec<NodeInput>,
}

impl NodeShell {
    pub(crate) fn new(parts: NodeParts) -> Result<Self, AgentError> {
        let NodeParts { worker, guard, signals, broker, rendezvous, store, run_dir } = parts;
        Ok(Self {
            worker,
            guard,
            signals,
            processes: BTreeMap::new(),
            broker,
            has_broker_events: false,
            rendezvous,
            store,
            run_dir,
            snapshots: Snapshots::default(),
            answers: Inbox::new()?,
            reader: JobThread::start("enn-node-io", JOBS_END_MAX)?,
            writer: JobThread::start("enn-snapshots", JOBS_END_MAX)?,
            pending: Vec::new(),
        })
    }

    /// Returns the directory of the broker's socket, private to the user.
    pub(crate) fn socket_directory(&self) -> Option<&Path> {
        self.broker.socket().parent()
    }

    /// Returns the run directory, where it is known.
    pub(crate) fn run_dir(&self) -> Option<&Path> {
        self.run_dir.as_deref()
    }

    /// Returns the descriptors to wait for.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = (NodeSource, BorrowedFd<'_>)> {
        let signals = self.signals.iter().map(|signals| (NodeSource::Signals, signals.fd()));
        let living = self.processes.iter().filter(|(_, process)| process.lives());
        let living = living.map(|(worker, process)| (NodeSource::Process(*worker), process.pidfd()));
        let own = [(NodeSource::Broker, self.broker.wake_fd()), (NodeSource::Answers, self.answers.fd())];
        signals.chain(living).chain(own)
    }

    /// Returns a source that is to be read without waiting, though its descriptor may not be ready.
    pub(crate) fn unread(&self) -> Option<NodeSource> {
        self.has_broker_events.then_some(NodeSource::Broker)
    }

    /// Reads a descriptor that became ready. The end of a process is at most `late` old.
    pub(crate) fn read(&mut self, source: NodeSource, late: Duration, inputs: &mut Vec<NodeInput>) {
        match source {
            NodeSource::Signals => {
                let signals = self.signals.as_mut().map(Signals::take).unwrap_or_default();
                inputs.extend(signals.iter().map(|signal| NodeInput::Signal(StopSignal::named(signal.as_str()))));
            }
            NodeSource::Process(worker) => {
                let Some(process) = self.processes.get_mut(&worker) else { return };
                let exit = process.reap(&mut self.guard, late);
                inputs.extend(exit.map(|exit| NodeInput::Exited { worker, exit }));
            }
            NodeSource::Broker => {
                self.broker.clear_wake();
                let events: Vec<BrokerEvent> =
                    std::iter::from_fn(|| self.broker.event()).take(BROKER_EVENTS_MAX).collect();
                self.has_broker_events = events.len() == BROKER_EVENTS_MAX;
                for event in events {
                    if let BrokerEvent::Progressed { worker, phase, step } = event {
                        self.processes.get(&worker).into_iter().for_each(|process| process.note_progress(phase, step));
                    } else {
                        inputs.push(NodeInput::Broker(event));
                    }
                }
            }
            NodeSource::Answers => {
                for answer in self.answers.take() {
                    inputs.push(self.on_answer(answer));
                }
            }
            NodeSource::ForkServer | NodeSource::Timers => {}
        }
    }

    /// Returns what followed from effects since the last call.
    pub(crate) fn take_pending(&mut self) -> Vec<NodeInput> {
        std::mem::take(&mut self.pending)
    }

    fn on_answer(&mut self, answer: Answer) -> NodeInput {
        match answer {
            Answer::RunSeen(result) => NodeInput::RunSeen(result),
            Answer::Evidence { worker, evidence } => NodeInput::Evidence { worker, evidence },
            Answer::Written { name, unwritten, result } => {
                self.snapshots.written(name, unwritten);
                let (worker, ticket) = name;
                NodeInput::SnapshotWritten { worker, ticket, result }
            }
            Answer::Stacks { round, dir, summary } => NodeInput::StacksCollected { round, dir, summary },
        }
    }

    /// Does one thing; returns an effect that is not about this machine.
    pub(crate) fn carry_out(&mut self, effect: NodeEffect) -> Option<Outward> {
        match effect {
            NodeEffect::Report(event) => return Some(Outward::Report(event)),
            NodeEffect::Journal(event) => return Some(Outward::Journal(Box::new(event))),
            NodeEffect::Lead { epoch, members, snapshot, facts } => {
                return Some(Outward::Lead(Box::new(LeadOrder { epoch, members, snapshot: *snapshot, facts })));
            }
            NodeEffect::End(end) => return Some(Outward::End(end)),
            NodeEffect::LookAtRun(facts) => self.look_at_run(facts),
            NodeEffect::Admit { worker, standby } => {
                let standby = standby.map(|standby| self.completed_standby(*standby));
                self.ask_broker(|broker| broker.expect(worker, standby));
            }
            NodeEffect::Spawn { worker, seat, logs } => self.spawn(worker, seat, &logs),
            NodeEffect::Signal { worker, signal } => {
                let signal = match signal {
                    EndSignal::Terminate => Signal::SIGTERM,
                    EndSignal::Kill => Signal::SIGKILL,
                    EndSignal::Request(signal) => signal,
                };
                self.processes.get(&worker).into_iter().for_each(|process| process.signal(signal));
            }
            NodeEffect::SetFlag { worker, flag, on } => {
                self.processes.get(&worker).into_iter().for_each(|process| process.set_flag(flag, on));
                if flag == WorkerFlag::Stop && on {
                    self.ask_broker(|broker| broker.stop_script(worker));
                }
            }
            NodeEffect::Seat { round, seats } => self.seat(round, seats),
            NodeEffect::EndRound { reason } => self.ask_broker(|broker| broker.end_round(reason)),
            NodeEffect::Broadcast(message) => self.ask_broker(|broker| broker.tell_all(*message)),
            NodeEffect::Disconnect { worker } => self.ask_broker(|broker| broker.dismiss(worker)),
            NodeEffect::DisconnectAll => self.ask_broker(Broker::close_all),
            NodeEffect::SyncBroker { worker } => self.ask_broker(|broker| broker.sync(worker.0.into())),
            NodeEffect::ReadEvidence { worker } => self.read_evidence(worker),
            NodeEffect::Forget { worker } => _ = self.processes.remove(&worker),
            NodeEffect::LinkLogs { worker, logs } => self.link_logs(worker, logs),
            NodeEffect::Persist { worker, ticket, dir, rank } => self.persist((worker, ticket), dir, rank),
            NodeEffect::Release { worker, ticket } => self.snapshots.release((worker, ticket)),
            NodeEffect::Keep { worker, shard } => {
                if let Some(process) = self.processes.get(&worker) {
                    self.snapshots.keep(worker, process.page(), *shard);
                }
            }
            NodeEffect::CollectStacks { round, workers, limit } => self.collect_stacks(round, &workers, limit),
            NodeEffect::ReadPages => {
                let living = self.processes.values().filter(|process| process.lives());
                self.pending.push(NodeInput::Pages(living.map(WorkerProcess::progress).collect()));
            }
            NodeEffect::CutLink { time } => self.membership(|rendezvous| rendezvous.deafen(time)),
            NodeEffect::RejoinMembership => self.membership(Rendezvous::join),
            NodeEffect::LeaveMembership { why } => self.membership(|rendezvous| rendezvous.leave(why)),
            NodeEffect::FinishMembership { epoch } => {
                self.membership(|rendezvous| transport::finish_membership(rendezvous, epoch))
            }
            // Programs have a shell of their own.
            NodeEffect::StartPrograms(_) | NodeEffect::FindCause | NodeEffect::ClearGroup { .. } => {}
        }
        None
    }

    fn membership(&self, ask: impl FnOnce(&Rendezvous)) {
        if let Some(rendezvous) = &self.rendezvous {
            ask(rendezvous);
        }
    }

    fn ask_broker(&mut self, ask: impl FnOnce(&Broker) -> Result<(), BrokerError>) {
        if let Err(error) = ask(&self.broker) {
            self.pending.push(NodeInput::Fault { reason: error.to_string() });
        }
    }

    /// Returns where the workers of this node reach the store.
    fn store(&self) -> Option<StoreAddress> {
        self.rendezvous.as_ref().map(|rendezvous| rendezvous.store()).or_else(|| self.store.clone())
    }

    fn completed_standby(&self, standby: Standby) -> Standby {
        let (store_host, store_port) = self.store().unwrap_or_default();
        Standby { store_host, store_port, threads: self.worker.threads, ..standby }
    }

    fn seat(&mut self, round: u64, seats: BTreeMap<WorkerId, Assignment>) {
        let (store_host, store_port) = self.store().unwrap_or_default();
        let threads = self.worker.threads;
        for (worker, seat) in &seats {
            if let Some(process) = self.processes.get_mut(worker) {
                process.rank = seat.rank;
            }
        }
        let completed = |(worker, seat): (WorkerId, Assignment)| {
            (worker, Assignment { store_host: store_host.clone(), store_port, threads, ..seat })
        };
        let seats = seats.into_iter().map(completed).collect();
        self.ask_broker(|broker| broker.begin_round(RoundPlan { round: Round(round), seats }));
    }

    fn spawn(&mut self, worker: WorkerId, seat: Option<SeatFacts>, logs: &Path) {
        let store = self.store();
        let run_dir = self.run_dir.clone().unwrap_or_default();
        let identity = Identity {
            worker,
            seat,
            control_fd: -1,
            broker: self.broker.socket(),
            script: self.broker.script_socket(),
            seat_dir: self.broker.seat_dir(),
            run_dir: &run_dir,
            store: store.as_ref(),
        };
        self.pending.push(match WorkerProcess::start(&self.worker, identity, logs, &mut self.guard) {
            Ok(process) => {
                let pid = process.pid();
                self.processes.insert(worker, process);
                NodeInput::Spawned { worker, pid }
            }
            Err(error) => NodeInput::SpawnFailed { worker, error: error.to_string() },
        });
    }

    fn look_at_run(&mut self, facts: RunFacts) {
        self.run_dir = Some(facts.run_dir.clone());
        let answers = self.answers.sender();
        if !self.reader.submit(move || answers.send(Answer::RunSeen(check_view(&facts)))) {
            self.pending.push(NodeInput::RunSeen(Err("the disk does not answer".into())));
        }
    }

    fn read_evidence(&mut self, worker: WorkerId) {
        let Some(process) = self.processes.get(&worker) else { return };
        let first_launch = process.first_launch();
        let logs = (!process.ended_well()).then(|| process.logs().to_owned());
        let answers = self.answers.sender();
        let read = move || {
            let stderr = logs.map(|logs| evidence::stderr_tail(&logs)).unwrap_or_default();
            answers.send(Answer::Evidence { worker, evidence: WorkerEvidence { stderr, first_launch } });
        };
        // Without an answer the node state goes on after a while.
        let _full = self.reader.submit(read);
    }

    fn link_logs(&mut self, worker: WorkerId, to: PathBuf) {
        let Some(process) = self.processes.get(&worker) else { return };
        let from = process.logs().to_owned();
        let link = move || {
            if let Err(error) = evidence::link_logs(&from, &to) {
                // The log is where it was; only `enn logs` of this round does not show it.
                tracing::debug!("{}: {error}", to.display());
            }
        };
        self.reader.run_within(LOGS_WAIT_MAX, link);
    }

    fn persist(&mut self, name: SnapshotName, dir: PathBuf, rank: u32) {
        let (worker, ticket) = name;
        let mut refuse = |failure| {
            self.pending.push(NodeInput::SnapshotWritten { worker, ticket, result: Err(failure) });
        };
        let snapshot = match self.snapshots.begin_writing(name) {
            Writing::Begin(snapshot) => snapshot,
            Writing::Refused(failure) => return refuse(failure),
        };
        let answers = self.answers.sender();
        let write = move || {
            let result = snapshot.write(&dir, rank);
            let unwritten = result.is_err().then_some(snapshot);
            answers.send(Answer::Written { name, unwritten, result });
        };
        if !self.writer.submit(write) {
            self.snapshots.written(name, None);
            refuse(WriteFailure { error: "too many shards wait to be written".into(), disk_full: false });
        }
    }

    fn collect_stacks(&mut self, round: u64, workers: &[WorkerId], limit: Duration) {
        let dir = self.run_dir.clone().unwrap_or_default().join("logs").join(round.to_string()).join("stacks");
        let living = workers.iter().filter_map(|worker| self.processes.get(worker)).filter(|process| process.lives());
        let targets: Vec<StackTarget> =
            living.map(|process| StackTarget { rank: process.rank, pid: process.pid() }).collect();
        let answers = self.answers.sender();
        let to = dir.clone();
        let answer = move |summary| answers.send(Answer::Stacks { round, dir: to, summary });
        if let Err(line) = collect_stacks(targets, dir.clone(), limit, answer) {
            self.pending.push(NodeInput::StacksCollected { round, dir, summary: vec![line] });
        }
    }

    /// Kills what is left, and leaves a process that survives that to the machine.
    pub(crate) fn end(mut self) {
        let _gone = self.broker.close_all();
        let deadline = Instant::now() + KILLED_WAIT_MAX;
        self.processes.values().for_each(|process| process.signal(Signal::SIGKILL));
        for (_, mut process) in std::mem::take(&mut self.processes) {
            if process.lives() {
                let mut fds = [PollFd::new(process.pidfd(), PollFlags::POLLIN)];
                // After an error the process is looked at all the same.
                let _waited = wait_ready(&mut fds, Some(deadline));
                let _exit = process.reap(&mut self.guard, Duration::ZERO);
            }
            if process.lives() {
                process.leave();
            }
        }
    }
}
