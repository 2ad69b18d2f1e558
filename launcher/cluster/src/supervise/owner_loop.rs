//! The owner loop: waits for everything at once, and drives the node state and, on the leader, the supervisor.
//!
//! ```text
//! descriptors ─► inputs of the node ─► NodeState ─► effects ─► processes, broker, …
//!                      ▲ queue ▼ (one thread)
//!                inputs of the leader ─► Supervisor (a batch, then settle) ─► effects ─► journal, commits, other nodes, …
//! ```
//! **Invariant:** nothing is polled. A death is handled before the messages of those who noticed it.

use super::{
    spec::{AgentSpec, NodeCounts, ONLY_NODE},
    take_over::{Prepared, PreparedLeader, TakeOver},
};
use crate::{
    leader::{Checkpoints, Fence, Journal, LeaderParts, LeaderShell, LeaderSource, read_kernels},
    node_agent::{
        AgentError,
        background::Inbox,
        effect::{NodeEffect, NodeEnd},
        input::NodeInput,
        shell::{NodeShell, NodeSource},
        state::NodeState,
        worker_shell::WorkerShell,
    },
    rendezvous::{NodeId, Rendezvous, RunEnd as GroupRunEnd},
    supervisor::{
        Supervisor,
        effect::{RunEnd, RunOutcome},
        input::Input,
        settings::{Contract, SupervisorSettings},
    },
    transport,
};
use crossbeam_channel::Sender;
use enn_common::{
    event::EventKind,
    kernels::KernelBook,
    wire::node_agent::{Epoch, NodeEvent, RunFacts, RunSnapshot},
};
use enn_process::wait_ready;
use nix::poll::{PollFd, PollFlags};
use std::{
    os::fd::BorrowedFd,
    path::PathBuf,
    rc::Rc,
    time::{Duration, Instant},
};

/// A poll that blocked lasted at least this long.
const BLOCKED_MIN: Duration = Duration::from_millis(1);
/// Shortest wait after a deadline that a machine did not move.
const TICK_PAUSE: Duration = Duration::from_millis(5);
/// Longest wait for the other nodes to receive the end of the run.
pub(super) const END_WAIT_MAX: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) enum LoopEnd {
    /// This node led.
    Led(RunOutcome),
    /// The node agent's work is over; another node leads, or nobody.
    Followed(NodeEnd),
    /// The thread that was to prepare this node to lead gave up.
    NotPrepared,
}

/// The leader's half of the loop.
enum Leading<'a> {
    No,
    /// A thread prepares; inputs wait.
    Preparing(Box<RunSnapshot>),
    Yes(Box<LeaderShell<'a>>),
}

/// A descriptor that is ready, in the order in which they are handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    Node(NodeSource),
    Membership,
    Leader(LeaderSource),
    Prepared,
}

pub(super) struct OwnerLoop<'a, S> {
    state: NodeState,
    /// Time zero of the node state.
    origin: Instant,
    /// Ends before the node agent, whose directory has the control socket.
    leading: Leading<'a>,
    pub(super) shell: S,
    pub(super) rendezvous: Option<Rc<Rendezvous>>,
    own: NodeId,
    pub(super) nodes: NodeCounts,
    /// Shows the events of a node that does not lead.
    pub(super) emit: Box<dyn FnMut(EventKind) + 'a>,
    /// Begins to prepare a leader in another thread.
    pub(super) begin_lead: Box<dyn FnMut(TakeOver) + 'a>,
    /// Settings of this node's supervisor, where the workers are any programs.
    pub(super) programs: Option<SupervisorSettings>,
    /// How the run of programs ended for the membership.
    pub(super) group_end: Option<GroupRunEnd>,
    /// The launcher cannot go on.
    pub(super) failure: Option<AgentError>,
    prepared: Inbox<Prepared>,
    /// This node leads the membership service, so that messages are events of other nodes.
    pub(super) leads_membership: bool,
    pub(super) to_node: Vec<NodeInput>,
    pub(super) to_leader: Vec<Input>,
    /// Epoch in which this node began to lead.
    pub(super) leads_since: Epoch,
    /// Where the thread that prepared the leader waits for the outcome.
    outcome_to: Option<Sender<Result<RunOutcome, AgentError>>>,
    pub(super) node_end: Option<NodeEnd>,
    gave_up: bool,
    /// End of the poll before.
    returned: Instant,
}

impl<'a, S: NodeShell> OwnerLoop<'a, S> {
    /// Makes the loop of a node whose events nobody sees, and that is not prepared to lead.
    pub(super) fn new(
        state: NodeState,
        shell: S,
        rendezvous: Option<Rc<Rendezvous>>,
        nodes: NodeCounts,
    ) -> Result<Self, AgentError> {
        let own = rendezvous.as_ref().map_or(ONLY_NODE, |rendezvous| rendezvous.node());
        Ok(Self {
            state,
            origin: Instant::now(),
            shell,
            leading: Leading::No,
            leads_membership: false,
            rendezvous,
            own,
            nodes,
            emit: Box::new(|_| {}),
            begin_lead: Box::new(|_| {}),
            programs: None,
            group_end: None,
            failure: None,
            prepared: Inbox::new()?,
            to_node: Vec::new(),
            to_leader: Vec::new(),
            leads_since: Epoch { number: 0, leader: own },
            outcome_to: None,
            node_end: None,
            gave_up: false,
            returned: Instant::now(),
        })
    }

    /// Leads from now on: from `snapshot`, if another node led before.
    pub(super) fn lead_run(
        &mut self,
        spec: AgentSpec,
        snapshot: Option<RunSnapshot>,
        journal: Journal<'a>,
        checkpoints: Box<dyn Checkpoints>,
        fence: Fence,
    ) -> Result<(), AgentError> {
        let settings = spec.supervisor(self.own, self.rendezvous.as_deref(), self.nodes);
        let kernels = read_kernels(&spec.run.run_dir, &spec.node.worker.program);
        self.lead(LeaderParts {
            supervisor: match snapshot {
                None => Supervisor::new(settings, kernels),
                Some(snapshot) => Supervisor::take_over(settings, kernels, snapshot),
            },
            journal,
            checkpoints: Some(checkpoints),
            fence,
            run_dir: spec.run.run_dir,
            program: spec.node.worker.program,
            host: spec.node.host,
        })
    }

    pub(super) fn lead(&mut self, parts: LeaderParts<'a>) -> Result<(), AgentError> {
        self.leads_membership = true;
        let sockets = self.shell.socket_directory();
        let mut leader = LeaderShell::new(parts, self.own, self.rendezvous.clone(), sockets)?;
        self.to_node.extend(leader.handle(Vec::new()));
        self.leading = Leading::Yes(Box::new(leader));
        Ok(())
    }

    /// Returns whether this node leads, or prepares to.
    pub(super) fn is_leading(&self) -> bool {
        match self.leading {
            Leading::No => false,
            Leading::Preparing(_) | Leading::Yes(_) => true,
        }
    }

    /// Handles inputs and carries out effects until nothing follows any more.
    pub(super) fn drive(&mut self) {
        loop {
            for input in std::mem::take(&mut self.to_node) {
                self.handle_node_input(input);
            }
            if !self.to_node.is_empty() {
                continue;
            }
            let Leading::Yes(leader) = &mut self.leading else { return };
            if self.to_leader.is_empty() {
                return;
            }
            self.to_node.extend(leader.handle(std::mem::take(&mut self.to_leader)));
            self.to_leader.append(&mut leader.pending);
            leader.take_events().into_iter().for_each(&mut self.emit);
        }
    }

    fn handle_node_input(&mut self, input: NodeInput) {
        let mut effects = Vec::new();
        self.state.on(self.origin.elapsed(), input, &mut effects);
        for effect in effects {
            self.carry_out(effect);
        }
    }

    fn carry_out(&mut self, effect: NodeEffect) {
        match effect {
            NodeEffect::Report(event) => self.report(event),
            NodeEffect::Journal(event) => (self.emit)(event),
            NodeEffect::CutLink { time } => self.membership(|rendezvous| rendezvous.cut_link(time)),
            NodeEffect::RejoinMembership => self.membership(Rendezvous::join),
            NodeEffect::LeaveMembership { why } => self.membership(|rendezvous| rendezvous.leave(why)),
            NodeEffect::FinishMembership { epoch } => {
                self.membership(|rendezvous| rendezvous.finished(transport::round_of(epoch)));
            }
            NodeEffect::Lead { epoch, members, snapshot, facts } => {
                self.leads_since = epoch;
                // In front of what other nodes have sent already.
                self.to_leader.insert(0, Input::MembershipFormed { epoch, members });
                self.prepare_to_lead(snapshot, facts);
            }
            NodeEffect::End(end) => self.node_end = Some(end),
            // About this machine: the shell knows them all.
            effect => self.shell.carry_out(effect, &mut self.to_node),
        }
    }

    fn membership(&self, ask: impl FnOnce(&Rendezvous)) {
        if let Some(rendezvous) = &self.rendezvous {
            ask(rendezvous);
        }
    }

    /// Reports to the leader: the supervisor in this thread, or another node.
    fn report(&mut self, event: NodeEvent) {
        if self.is_leading() {
            self.to_leader.push(Input::Node { node: self.own, event });
        } else if let (Some(rendezvous), Some(epoch)) = (&self.rendezvous, self.state.epoch()) {
            transport::send(rendezvous, None, epoch, &event);
        }
    }

    /// Returns whether the workers live as long as a round of the membership, and each node tells its own people.
    pub(super) fn runs_group(&self) -> bool {
        self.programs.as_ref().is_some_and(|settings| matches!(settings.run.contract, Contract::Env(_)))
    }

    fn prepare_to_lead(&mut self, snapshot: Box<RunSnapshot>, facts: RunFacts) {
        if let Some(settings) = self.programs.clone() {
            let host = settings.host.clone();
            let supervisor = Supervisor::take_over(settings, KernelBook::default(), *snapshot);
            self.failure = self.lead_programs(supervisor, host).err();
        } else {
            self.leading = Leading::Preparing(snapshot);
            (self.begin_lead)(TakeOver::new(facts, self.prepared.sender()));
        }
    }

    /// Leads a run of programs from now on.
    pub(super) fn lead_programs(&mut self, supervisor: Supervisor, host: String) -> Result<(), AgentError> {
        self.lead(LeaderParts {
            supervisor,
            journal: Journal::Queued(Vec::new()),
            checkpoints: None,
            fence: Fence::default(),
            run_dir: PathBuf::new(),
            program: PathBuf::new(),
            host,
        })
    }

    /// A thread has prepared this node to lead, or gave up.
    fn on_prepared(&mut self, prepared: Prepared) -> Result<(), AgentError> {
        let leader = match prepared {
            Prepared::Failed => {
                self.gave_up = true;
                return Ok(());
            }
            Prepared::Ready(leader) => *leader,
        };
        let Leading::Preparing(snapshot) = std::mem::replace(&mut self.leading, Leading::No) else { return Ok(()) };
        let PreparedLeader { spec, checkpoints, fence, journal, outcome } = leader;
        self.outcome_to = Some(outcome);
        self.lead_run(spec, Some(*snapshot), Journal::Relayed(journal), checkpoints, fence)
    }

    /// Waits until something happens or is due, and makes inputs of it.
    pub(super) fn wait(&mut self) -> Result<(), AgentError> {
        let began = Instant::now();
        let ready = self.ready(self.deadline(began))?;
        let now = Instant::now();
        // A poll that blocked was listening when the death came. One that found it waiting did not listen since the poll
        // before returned, so the death may be as old as that.
        let was_listening = now.duration_since(began) >= BLOCKED_MIN;
        let late = if was_listening { Duration::ZERO } else { now.duration_since(self.returned) };
        self.returned = now;
        for source in ready {
            match source {
                Source::Node(source) => self.shell.read(source, late, &mut self.to_node),
                Source::Membership => self.read_membership(),
                Source::Leader(source) => {
                    if let Leading::Yes(leader) = &mut self.leading {
                        leader.read(source, &mut self.to_leader);
                    }
                }
                Source::Prepared => {
                    for prepared in self.prepared.take() {
                        self.on_prepared(prepared)?;
                    }
                }
            }
        }
        let now = Instant::now();
        if self.node_deadline().is_some_and(|at| at <= now) {
            self.to_node.push(NodeInput::Tick);
        }
        if self.shell.deadline(now).is_some_and(|at| at <= now) {
            self.shell.time_up(&mut self.to_node);
        }
        if self.leader_deadline().is_some_and(|at| at <= now) {
            self.to_leader.push(Input::Tick);
        }
        Ok(())
    }

    fn node_deadline(&self) -> Option<Instant> {
        self.state.deadline().map(|at| self.origin + at)
    }

    fn leader_deadline(&self) -> Option<Instant> {
        match &self.leading {
            Leading::Yes(leader) => leader.deadline(),
            Leading::No | Leading::Preparing(_) => None,
        }
    }

    /// Returns the next deadline. One that has passed already was not moved by its machine, which must not keep a processor busy.
    fn deadline(&self, now: Instant) -> Option<Instant> {
        let next = [self.node_deadline(), self.leader_deadline(), self.shell.deadline(now)].into_iter().flatten().min();
        next.map(|at| if at <= now { now + TICK_PAUSE } else { at })
    }

    fn ready(&self, deadline: Option<Instant>) -> Result<Vec<Source>, AgentError> {
        let unread = self.shell.unread().map(Source::Node);
        let deadline = if unread.is_some() { Some(Instant::now()) } else { deadline };
        let mut watched: Vec<(Source, BorrowedFd<'_>)> =
            self.shell.descriptors().into_iter().map(|(source, fd)| (Source::Node(source), fd)).collect();
        watched.extend(self.rendezvous.iter().map(|rendezvous| (Source::Membership, rendezvous.fd())));
        if let Leading::Yes(leader) = &self.leading {
            watched.extend(leader.descriptors().map(|(source, fd)| (Source::Leader(source), fd)));
        }
        watched.push((Source::Prepared, self.prepared.fd()));
        let mut fds: Vec<PollFd<'_>> = watched.iter().map(|(_, fd)| PollFd::new(*fd, PollFlags::POLLIN)).collect();
        wait_ready(&mut fds, deadline).map_err(|source| AgentError::System { what: "wait for events", source })?;
        let ready = watched.iter().zip(&fds).filter(|(_, fd)| fd.any().unwrap_or(false));
        let mut ready: Vec<Source> = ready.map(|((source, _), _)| *source).chain(unread).collect();
        ready.sort_unstable();
        ready.dedup();
        Ok(ready)
    }
}

impl<S: NodeShell> OwnerLoop<'_, S> {
    /// Returns how the run ended for this node, once it has.
    pub(super) fn ended(&mut self) -> Option<LoopEnd> {
        if self.gave_up {
            return Some(LoopEnd::NotPrepared);
        }
        match &mut self.leading {
            Leading::Yes(leader) => leader.outcome.take().map(LoopEnd::Led),
            Leading::No | Leading::Preparing(_) => self.node_end.take().map(LoopEnd::Followed),
        }
    }

    /// Ends the services of the leader. Returns the rendezvous if the other nodes have to hear of the end.
    pub(super) fn end_leading(&mut self, end: &LoopEnd) -> Option<Rc<Rendezvous>> {
        let waits_for_others = match (end, &self.leading) {
            (LoopEnd::Led(outcome), Leading::Yes(leader)) => outcome.end != RunEnd::HandedOff && leader.has_others(),
            (LoopEnd::Followed(NodeEnd::Ended(_)), _) => self.state.epoch().is_some(),
            _ => false,
        };
        if let Leading::Yes(leader) = std::mem::replace(&mut self.leading, Leading::No) {
            leader.end();
        }
        self.rendezvous.take().filter(|_| waits_for_others)
    }
}

impl OwnerLoop<'_, WorkerShell> {
    /// Runs until the run is over for this node.
    pub(super) fn run(mut self) -> Result<LoopEnd, AgentError> {
        loop {
            self.drive();
            if let Some(end) = self.ended() {
                return Ok(self.finish(end));
            }
            self.wait()?;
        }
    }

    /// Ends the services and the processes that are left, and waits until the other nodes know that this one is done.
    fn finish(mut self, end: LoopEnd) -> LoopEnd {
        let others = self.end_leading(&end);
        self.shell.end();
        if let Some(rendezvous) = others {
            rendezvous.await_end(END_WAIT_MAX);
        }
        match (end, self.outcome_to) {
            (LoopEnd::Led(outcome), Some(thread)) => {
                // A thread that is gone concludes nothing.
                let _gone = thread.send(Ok(outcome.clone()));
                LoopEnd::Led(outcome)
            }
            (end, _) => end,
        }
    }
}
