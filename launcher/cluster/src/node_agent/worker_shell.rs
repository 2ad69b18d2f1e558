//! Carries out what the node state decides about ENN's own workers, and tells it what happens: processes, control pages, broker, logs and signals of a node.
//!
//! **Invariant:** the thread that owns this starts all workers, since they die with the thread that forked them. What may wait for a disk
//! is done by other threads, but for the log files of a worker that starts.

use super::{
    background::{GPU_LOOK_MAX, Inbox, JobThread, collect_stacks},
    broker_reader::BrokerReader,
    effect::{EndSignal, NodeEffect},
    environment::{Identity, ScriptPlaces, StoreAddress},
    error::AgentError,
    evidence,
    input::NodeInput,
    process::WorkerProcess,
    settings::NodeSpec,
    shell::{NodeShell, NodeSource},
    snapshots::{KeptSnapshot, SnapshotName, Snapshots},
    view::check_view,
};
use crate::rendezvous::Rendezvous;
use enn_broker::{Broker, BrokerEvent, Command};
use enn_common::{
    checkpoint::table::ShardTable,
    id::WorkerId,
    wire::{
        message::{Assignment, Standby},
        node_agent::{RunFacts, SeatFacts, StopSignal, WorkerEvidence, WorkerFlag, WriteFailure},
    },
};
use enn_process::{Guard, STOP_SIGNALS, Signals, WorkerSpec, devices::GpuWatch, stacks::StackTarget, wait_ready};
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
/// Longest wait for the logs of a worker to appear in the directory of its round. Whoever hears of the round finds them there, unless the
/// disk is slow.
const LOGS_WAIT_MAX: Duration = Duration::from_millis(100);

/// Answers of the node agent's threads.
#[derive(Debug)]
enum Answer {
    Input(NodeInput),
    Written { name: SnapshotName, unwritten: Option<KeptSnapshot>, result: Result<ShardTable, WriteFailure> },
}

/// The impure half of a node agent with ENN's own workers.
pub(crate) struct WorkerShell {
    worker: WorkerSpec,
    runs_scripts: bool,
    guard: Guard,
    signals: Option<Signals>,
    /// Ends after the processes, which are connected to it.
    processes: BTreeMap<WorkerId, WorkerProcess>,
    broker: BrokerReader,
    /// Membership of a run over several nodes.
    rendezvous: Option<Rc<Rendezvous>>,
    /// Store of a run on one node.
    store: Option<StoreAddress>,
    run_dir: Option<PathBuf>,
    snapshots: Snapshots,
    answers: Inbox<Answer>,
    /// Reads and links: small jobs, which do not wait for shards.
    reader: JobThread,
    /// Writes shards.
    writer: JobThread,
    /// Health of the GPUs, where the workers use them.
    gpus: Option<GpuWatch>,
    /// Inputs that follow at once from effects.
    pending: Vec<NodeInput>,
}

impl WorkerShell {
    /// Starts the broker, and takes over the signals that stop a run, where that is wanted. `store` is that of a run on one node; `run_dir`
    /// the run directory, where it is known already.
    pub(crate) fn new(
        spec: &NodeSpec,
        guard: Guard,
        rendezvous: Option<Rc<Rendezvous>>,
        store: Option<StoreAddress>,
        run_dir: Option<PathBuf>,
    ) -> Result<Self, AgentError> {
        let handled = [&STOP_SIGNALS[..], &[Signal::SIGUSR1]].concat();
        let signals = if spec.handle_signals { Signals::install(&handled) } else { Ok(None) };
        Ok(Self {
            worker: spec.worker.clone(),
            runs_scripts: spec.runs_scripts,
            guard,
            signals: signals.map_err(|source| AgentError::System { what: "handle signals", source })?,
            processes: BTreeMap::new(),
            broker: BrokerReader::new(Broker::serve(&spec.socket_parent)?),
            rendezvous,
            store,
            run_dir,
            snapshots: Snapshots::default(),
            answers: Inbox::new()?,
            reader: JobThread::start("enn-node-io", JOBS_END_MAX)?,
            writer: JobThread::start("enn-snapshots", JOBS_END_MAX)?,
            gpus: spec.uses_gpus().then(|| GpuWatch::start(spec.visible_devices.clone(), spec.workers)),
            pending: Vec::new(),
        })
    }

    /// Kills what is left, and leaves a process that survives that to the machine.
    pub(crate) fn end(mut self) {
        let _gone = self.broker.ask(Command::CloseAll);
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

impl NodeShell for WorkerShell {
    fn socket_directory(&self) -> Option<&Path> {
        self.broker.broker().socket().parent()
    }

    fn run_dir(&self) -> Option<&Path> {
        self.run_dir.as_deref()
    }

    fn descriptors(&self) -> Vec<(NodeSource, BorrowedFd<'_>)> {
        let signals = self.signals.iter().map(|signals| (NodeSource::Signals, signals.fd()));
        let living = self.processes.iter().filter(|(_, process)| process.lives());
        let living = living.map(|(worker, process)| (NodeSource::Process(*worker), process.pidfd()));
        let own = [(NodeSource::Broker, self.broker.fd()), (NodeSource::Answers, self.answers.fd())];
        signals.chain(living).chain(own).collect()
    }

    fn unread(&self) -> Option<NodeSource> {
        self.broker.has_more().then_some(NodeSource::Broker)
    }

    fn read(&mut self, source: NodeSource, late: Duration, inputs: &mut Vec<NodeInput>) {
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
                for event in self.broker.read() {
                    if let BrokerEvent::Progressed { worker, phase, step } = event {
                        self.processes.get(&worker).into_iter().for_each(|process| process.note_progress(phase, step));
                    } else {
                        inputs.push(NodeInput::Broker(event));
                    }
                }
            }
            NodeSource::Answers => {
                for answer in self.answers.take() {
                    inputs.push(match answer {
                        Answer::Input(input) => input,
                        Answer::Written { name, unwritten, result } => {
                            unwritten.into_iter().for_each(|snapshot| self.snapshots.returned(name, snapshot));
                            let (worker, ticket) = name;
                            NodeInput::SnapshotWritten { worker, ticket, result }
                        }
                    });
                }
            }
            NodeSource::ForkServer | NodeSource::Timers => {}
        }
    }

    fn carry_out(&mut self, effect: NodeEffect, inputs: &mut Vec<NodeInput>) {
        match effect {
            NodeEffect::LookAtRun(facts) => self.look_at_run(facts),
            NodeEffect::Admit { worker, standby } => {
                let (store_host, store_port) = self.store().unwrap_or_default();
                let threads = self.worker.threads;
                let standby = standby.map(|standby| Box::new(Standby { store_host, store_port, threads, ..*standby }));
                self.ask_broker(Command::Expect { worker, standby });
            }
            NodeEffect::Spawn { worker, seat, local_rank, logs } => self.spawn(worker, seat, local_rank, &logs),
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
                    self.ask_broker(Command::StopScript { worker });
                }
            }
            NodeEffect::Seat { round, seats } => self.seat(round, seats),
            NodeEffect::EndRound { reason } => self.ask_broker(Command::EndRound { reason }),
            NodeEffect::Broadcast(message) => self.ask_broker(Command::TellAll(message)),
            NodeEffect::Disconnect { worker } => self.ask_broker(Command::Dismiss { worker }),
            NodeEffect::DisconnectAll => self.ask_broker(Command::CloseAll),
            NodeEffect::SyncBroker { worker } => self.ask_broker(Command::Sync { token: worker.0.into() }),
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
            // Of programs, or the owner loop's.
            NodeEffect::StartPrograms(_)
            | NodeEffect::FindCause
            | NodeEffect::ClearGroup { .. }
            | NodeEffect::Report(_)
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

impl WorkerShell {
    fn ask_broker(&mut self, command: Command) {
        self.pending.extend(self.broker.ask(command));
    }

    /// Returns where the workers of this node reach the store.
    fn store(&self) -> Option<StoreAddress> {
        self.rendezvous.as_ref().map(|rendezvous| rendezvous.store()).or_else(|| self.store.clone())
    }

    fn seat(&mut self, round: u64, seats: BTreeMap<WorkerId, Assignment>) {
        for (worker, seat) in &seats {
            if let Some(process) = self.processes.get_mut(worker) {
                process.rank = seat.rank;
                process.local_rank = seat.local_rank;
            }
        }
        let store = self.store().unwrap_or_default();
        self.pending.extend(self.broker.begin_round(round, seats, store, self.worker.threads));
    }

    fn spawn(&mut self, worker: WorkerId, seat: Option<SeatFacts>, local_rank: u32, logs: &Path) {
        let store = self.store();
        let run_dir = self.run_dir.clone().unwrap_or_default();
        let identity = Identity {
            worker,
            seat,
            control_fd: -1,
            broker: self.broker.broker().socket(),
            script: self.runs_scripts.then(|| ScriptPlaces {
                socket: self.broker.broker().script_socket(),
                seat_dir: self.broker.broker().seat_dir(),
            }),
            run_dir: &run_dir,
            store: store.as_ref(),
        };
        self.pending.push(match WorkerProcess::start(&self.worker, identity, local_rank, logs, &mut self.guard) {
            Ok(process) => {
                let pid = process.pid();
                self.processes.insert(worker, process);
                NodeInput::Spawned { worker, pid, forked: false }
            }
            Err(error) => NodeInput::SpawnFailed { worker, error: error.to_string() },
        });
    }

    fn look_at_run(&mut self, facts: RunFacts) {
        self.run_dir = Some(facts.run_dir.clone());
        let answers = self.answers.sender();
        if !self.reader.submit(move || answers.send(Answer::Input(NodeInput::RunSeen(check_view(&facts))))) {
            self.pending.push(NodeInput::RunSeen(Err("the disk does not answer".into())));
        }
    }

    fn read_evidence(&mut self, worker: WorkerId) {
        let Some(process) = self.processes.get(&worker) else { return };
        let first_launch = process.first_launch();
        let logs = (!process.ended_well()).then(|| process.logs().to_owned());
        let gpus = self.gpus.clone().filter(|_| logs.is_some());
        let local_rank = process.local_rank;
        let answers = self.answers.sender();
        let read = move || {
            let stderr = logs.map(|logs| evidence::stderr_tail(&logs)).unwrap_or_default();
            let evidence = WorkerEvidence { stderr, first_launch };
            let gpu = gpus.and_then(|gpus| gpus.look(local_rank, GPU_LOOK_MAX));
            answers.send(Answer::Input(NodeInput::Evidence { worker, evidence, gpu }));
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
        let snapshot = match self.snapshots.take(name) {
            Ok(snapshot) => snapshot,
            Err(failure) => return refuse(failure),
        };
        let answers = self.answers.sender();
        let write = move || {
            let result = snapshot.write(&dir, rank);
            let unwritten = result.is_err().then_some(snapshot);
            answers.send(Answer::Written { name, unwritten, result });
        };
        if !self.writer.submit(write) {
            refuse(WriteFailure { error: "too many shards wait to be written".into(), disk_full: false });
        }
    }

    fn collect_stacks(&mut self, round: u64, workers: &[WorkerId], limit: Duration) {
        let dir = self.run_dir.clone().unwrap_or_default().join("logs").join(round.to_string()).join("stacks");
        let living = workers.iter().filter_map(|worker| self.processes.get(worker)).filter(|process| process.lives());
        let targets: Vec<StackTarget> =
            living.map(|process| StackTarget { rank: process.rank, pid: process.pid() }).collect();
        let answers = self.answers.sender();
        let answer = move |collected| answers.send(Answer::Input(collected));
        self.pending.extend(collect_stacks(round, targets, dir, limit, answer));
    }
}
