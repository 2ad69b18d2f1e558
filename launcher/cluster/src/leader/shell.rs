//! Carries out what the supervisor decides, and tells it what happens to the leader's services: checkpoints, journal, control server and
//! run directory.

use super::{
    checkpoints::Checkpoints,
    commit_thread::CommitThread,
    control::{ControlCommand, ControlSocket},
    fence::Fence,
    journal::Journal,
    kernel_file::program_digest,
};
use crate::{
    node_agent::{
        background::{Inbox, JobThread},
        error::AgentError,
        input::NodeInput,
    },
    rendezvous::{NodeId, Rendezvous},
    supervisor::{
        Supervisor,
        effect::{Effect, RequestId, RunOutcome},
        input::Input,
    },
    transport,
};
use crossbeam_channel::Sender;
use enn_common::{
    event::EventKind,
    wire::{
        command::Answer,
        node_agent::{Epoch, NodeCommand, RunSnapshot},
    },
};
use std::{
    collections::BTreeMap,
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
    rc::Rc,
    time::{Duration, Instant},
};

/// Longest wait at the end for the digest of the worker program and for a directory for logs: nobody needs them any more.
const JOBS_END_MAX: Duration = Duration::from_millis(10);

pub(crate) struct LeaderParts<'a> {
    pub(crate) supervisor: Supervisor,
    pub(crate) journal: Journal<'a>,
    /// `None` in a run of programs, which takes no requests and writes nothing to the run directory.
    pub(crate) checkpoints: Option<Box<dyn Checkpoints>>,
    pub(crate) fence: Fence,
    pub(crate) run_dir: PathBuf,
    pub(crate) program: PathBuf,
    pub(crate) host: String,
}

/// A descriptor of the leader that became ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LeaderSource {
    Answers,
    Control,
}

/// The impure half of a leader, and the supervisor.
pub(crate) struct LeaderShell<'a> {
    parts: LeaderParts<'a>,
    /// Time zero of the supervisor.
    origin: Instant,
    commits: Option<CommitThread>,
    /// Ends before the directory of its socket.
    control: Option<ControlSocket>,
    /// Users who wait for an answer.
    callers: BTreeMap<RequestId, Sender<Answer>>,
    next_request: u64,
    answers: Inbox<Input>,
    digester: Option<JobThread>,
    /// Makes directories.
    io: Option<JobThread>,
    own: NodeId,
    rendezvous: Option<Rc<Rendezvous>>,
    /// Epoch of the newest membership, and its members.
    epoch: Epoch,
    members: Vec<NodeId>,
    /// Inputs that follow at once from effects.
    pub(crate) pending: Vec<Input>,
    /// How the run ended, once the supervisor has finished.
    pub(crate) outcome: Option<RunOutcome>,
}

impl<'a> LeaderShell<'a> {
    /// Opens the control socket in `sockets`, and starts the threads.
    pub(crate) fn new(
        mut parts: LeaderParts<'a>,
        own: NodeId,
        rendezvous: Option<Rc<Rendezvous>>,
        sockets: Option<&Path>,
    ) -> Result<Self, AgentError> {
        let answers = Inbox::new()?;
        let checkpoints = parts.checkpoints.take();
        let open = || ControlSocket::open(sockets.unwrap_or(&parts.run_dir), &parts.run_dir, &parts.host);
        let control = checkpoints.as_ref().map(|_| open()).transpose().inspect_err(|error| {
            let message = format!("the run takes no requests (enn pause, enn resize, …): {error}");
            parts.journal.record(EventKind::Warned { message });
        });
        let job_thread = |name| checkpoints.as_ref().map(|_| JobThread::start(name, JOBS_END_MAX)).transpose();
        let digester = job_thread("enn-digest")?;
        let io = job_thread("enn-leader-io")?;
        let commits =
            checkpoints.map(|store| CommitThread::start(store, parts.fence.clone(), answers.sender())).transpose()?;
        Ok(Self {
            parts,
            origin: Instant::now(),
            commits,
            control: control.ok().flatten(),
            callers: BTreeMap::new(),
            next_request: 0,
            answers,
            digester,
            io,
            own,
            rendezvous,
            epoch: Epoch::default(),
            members: Vec::new(),
            pending: Vec::new(),
            outcome: None,
        })
    }

    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    /// Returns the moment at which the supervisor wants to be asked again.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.parts.supervisor.deadline().map(|at| self.origin + at)
    }

    /// Returns the descriptors to wait for.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = (LeaderSource, BorrowedFd<'_>)> {
        let control = self.control.iter().map(|control| (LeaderSource::Control, control.fd()));
        control.chain([(LeaderSource::Answers, self.answers.fd())])
    }

    /// Reads a descriptor that became ready.
    pub(crate) fn read(&mut self, source: LeaderSource, inputs: &mut Vec<Input>) {
        match source {
            LeaderSource::Answers => inputs.extend(self.answers.take()),
            LeaderSource::Control => {
                let commands = self.control.as_ref().map(ControlSocket::take).unwrap_or_default();
                for ControlCommand { request, reply } in commands {
                    let id = RequestId(self.next_request);
                    self.next_request += 1;
                    self.callers.insert(id, reply);
                    inputs.push(Input::Request { id, request });
                }
            }
        }
    }

    /// Lets the supervisor handle a batch of inputs and decide, and carries out what it asks for. Returns what the leader's own node
    /// agent is told.
    pub(crate) fn handle(&mut self, inputs: Vec<Input>) -> Vec<NodeInput> {
        let mut effects = Vec::new();
        for input in inputs {
            if let Input::MembershipFormed { epoch, members } = &input {
                self.epoch = *epoch;
                self.members.clone_from(members);
            }
            self.parts.supervisor.on(self.now(), input, &mut effects);
        }
        self.parts.supervisor.settle(self.now(), &mut effects);
        let mut to_own = Vec::new();
        for effect in effects {
            self.carry_out(effect, &mut to_own);
        }
        to_own
    }

    /// Returns the events that wait to be recorded by the caller.
    pub(crate) fn take_events(&mut self) -> Vec<EventKind> {
        self.parts.journal.take()
    }

    /// Returns whether other nodes take part.
    pub(crate) fn has_others(&self) -> bool {
        self.members.iter().any(|member| *member != self.own)
    }

    fn carry_out(&mut self, effect: Effect, to_own: &mut Vec<NodeInput>) {
        match effect {
            Effect::Send { node, command } => to_own.extend(self.send(node, command)),
            Effect::Journal(event) => self.parts.journal.record(event),
            Effect::Answer { id, answer } => {
                // A caller that did not wait is told nothing.
                let _gone = self.callers.remove(&id).map(|caller| caller.send(answer));
            }
            // Programs write checkpoints of their own.
            Effect::FindCheckpoint if self.commits.is_none() => self.pending.push(Input::CheckpointFound(Ok(None))),
            Effect::FindCheckpoint => self.on_disk(CommitThread::find),
            Effect::SetAsideCheckpoint { path, file } => self.on_disk(|commits| commits.set_aside(path, file)),
            Effect::Commit(shards) => {
                let journaled = self.parts.journal.flushed();
                self.on_disk(|commits| commits.commit(shards, journaled));
            }
            Effect::MakeRoom(coming) => self.on_disk(|commits| commits.make_room(coming)),
            Effect::DiscardAttempt { attempt, below } => self.on_disk(|commits| commits.discard(attempt, below)),
            Effect::WriteRunFile { name, bytes } => {
                self.on_disk(|commits| commits.write_file(self.parts.run_dir.join(name), bytes));
            }
            Effect::NoteChunk(chunk) => self.on_disk(|commits| commits.note_chunk(chunk)),
            Effect::MakeLogDir { round } if self.io.is_none() => {
                self.pending.push(Input::LogDirMade { round, error: None });
            }
            Effect::MakeLogDir { round } => self.make_log_dir(round),
            Effect::DigestProgram => self.digest_program(),
            Effect::ExpelNode { node, reason } => self.membership(|rendezvous| rendezvous.dismiss(node, reason)),
            Effect::RejoinMembership => self.membership(Rendezvous::join),
            Effect::FinishMembership { epoch } => {
                self.membership(|rendezvous| rendezvous.finished(transport::round_of(epoch)));
            }
            Effect::EndMembershipRound { epoch, end, number, wait } => {
                self.membership(|rendezvous| rendezvous.end_round(transport::round_of(epoch), end, number, wait));
            }
            Effect::EndMembership(end) => self.membership(|rendezvous| rendezvous.end_run(end)),
            Effect::CountStoreClients => self.membership(Rendezvous::count_clients),
            // Whoever takes over holds the lock before its supervisor is made.
            Effect::AcquireRunDir => self.pending.push(Input::RunDirAcquired(Ok(()))),
            Effect::CloseControl => self.close_control(),
            Effect::HandOff(snapshot) => self.hand_off(&snapshot),
            Effect::Finish(outcome) => self.outcome = Some(*outcome),
        }
    }

    fn on_disk(&self, ask: impl FnOnce(&CommitThread)) {
        if let Some(commits) = &self.commits {
            ask(commits);
        }
    }

    fn membership(&self, ask: impl FnOnce(&Rendezvous)) {
        if let Some(rendezvous) = &self.rendezvous {
            ask(rendezvous);
        }
    }

    /// Sends a command; returns it for the leader's own node agent.
    fn send(&self, node: NodeId, command: NodeCommand) -> Option<NodeInput> {
        let epoch = self.epoch;
        if node == self.own {
            return Some(NodeInput::Command { epoch, command });
        }
        self.membership(|rendezvous| transport::send(rendezvous, Some(node), epoch, &command));
        None
    }

    fn make_log_dir(&mut self, round: u64) {
        let answers = self.answers.sender();
        let path = self.parts.run_dir.join("logs").join(round.to_string());
        let fence = self.parts.fence.clone();
        let make = move || {
            let made = fence.check().and_then(|()| std::fs::create_dir_all(&path));
            let error = made.err().map(|source| AgentError::Log { path, source }.to_string());
            answers.send(Input::LogDirMade { round, error });
        };
        if !self.io.as_ref().is_some_and(|io| io.submit(make)) {
            let error = Some("no directory for logs: the disk does not answer".to_owned());
            self.pending.push(Input::LogDirMade { round, error });
        }
    }

    fn digest_program(&mut self) {
        let answers = self.answers.sender();
        let program = self.parts.program.clone();
        let digest = move || answers.send(Input::ProgramDigest { digest: program_digest(&program) });
        if !self.digester.as_ref().is_some_and(|digester| digester.submit(digest)) {
            self.pending.push(Input::ProgramDigest { digest: String::new() });
        }
    }

    /// Accepts no more requests. Callers who have no answer hear that none comes, which the socket waits for.
    fn close_control(&mut self) {
        self.callers.clear();
        self.control = None;
    }

    /// Tells the other nodes the snapshot, and leaves the membership to one of them.
    fn hand_off(&mut self, snapshot: &RunSnapshot) {
        for node in self.members.iter().filter(|member| **member != self.own) {
            let command = NodeCommand::ReplicateSnapshot(Box::new(snapshot.clone()));
            let _own = self.send(*node, command);
        }
        self.close_control();
        self.membership(Rendezvous::hand_off);
        self.pending.push(Input::HandedOff);
    }

    /// Ends the services. The journal may get no event afterwards.
    pub(crate) fn end(mut self) {
        self.close_control();
    }
}
