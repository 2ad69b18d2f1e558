//! What leading needs beyond deciding: the lock of the run directory, the journal, the thread that commits, and the users' requests. The
//! real supervisor decides; a crash may end the list of its effects anywhere.

use super::world::{Event, Time, World};
use crate::{
    node_agent::input::NodeInput,
    rendezvous::NodeId,
    supervisor::{
        CompleteCheckpoint, Supervisor,
        effect::{Effect, RequestId, RunOutcome},
        input::{CommitFailure, CommittedCheckpoint, FoundCheckpoint, Input},
    },
    transport,
};
use enn_common::{
    kernels::KernelBook,
    wire::{
        command::Request,
        node_agent::{Epoch, NodeCommand, RunSnapshot},
    },
};
use std::{
    collections::{BTreeMap, VecDeque},
    path::PathBuf,
    time::Duration,
};

/// Longest wait for the lock of a leader that is gone.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(15);
/// Time between two attempts to get it.
const LOCK_PERIOD: Duration = Duration::from_millis(250);
/// Time that a leader whose run is over waits for the others.
const END_WAIT: Duration = Duration::from_secs(2);
/// Time in which a successor is found after the lead was handed off.
const HAND_OFF: Duration = Duration::from_millis(500);

/// One task of the thread that writes to the run directory.
#[derive(Debug, Clone)]
pub(super) enum StoreTask {
    Find,
    SetAside(PathBuf),
    Commit(CompleteCheckpoint),
    MakeRoom,
    Discard { attempt: String, below: u64 },
}

/// The part of an agent that leads.
pub(super) struct Leader {
    pub(super) supervisor: Supervisor,
    made_at: Time,
    pub(super) epoch: Epoch,
    inbox: Vec<Input>,
    batch_due: bool,
    pub(super) control_open: bool,
    tasks: VecDeque<StoreTask>,
    working: bool,
    wake: Option<Time>,
    /// Requests that were taken and not answered.
    pub(super) requests: BTreeMap<RequestId, Request>,
    pub(super) outcome: Option<RunOutcome>,
}

impl Leader {
    fn new(supervisor: Supervisor, epoch: Epoch, now: Time) -> Self {
        Self {
            supervisor,
            made_at: now,
            epoch,
            inbox: Vec::new(),
            batch_due: false,
            control_open: true,
            tasks: VecDeque::new(),
            working: false,
            wake: None,
            requests: BTreeMap::new(),
            outcome: None,
        }
    }
}

impl World {
    /// The first leader of the run.
    pub(super) fn first_leader(&mut self, id: u64) {
        let Some(agent) = self.agents.get(&id) else { return };
        let settings = self.plan.supervisor(NodeId(id), &agent.host, format!("{id:x}"));
        let supervisor = Supervisor::new(settings, KernelBook::default());
        self.install_leader(id, supervisor, Epoch { number: 0, leader: NodeId(id) });
        self.disk.lock = Some(id);
        if !self.plan.meets() {
            let epoch = Epoch { number: 1, leader: NodeId(id) };
            if let Some(agent) = self.agents.get_mut(&id) {
                agent.epoch = Some(epoch);
                agent.link_epoch = Some(epoch);
            }
            let members = vec![NodeId(id)];
            self.membership_formed(id, epoch, &members);
            self.feed_leader(id, Input::MembershipFormed { epoch, members });
            self.feed_node(id, NodeInput::LeaderFound { epoch });
        }
    }

    /// A node takes the lead from one that is gone.
    pub(super) fn next_leader(&mut self, id: u64, epoch: Epoch, members: Vec<NodeId>, snapshot: RunSnapshot) {
        let Some(agent) = self.agents.get(&id) else { return };
        let mut settings = self.plan.supervisor(NodeId(id), &agent.host, format!("{id:x}"));
        settings.run.first_round = self.disk.log_dirs.last().map_or(0, |last| last + 1);
        self.trace(|| format!("n{id} leads epoch {} from {snapshot:?}", epoch.number));
        self.lead_taken(id, &snapshot);
        let supervisor = Supervisor::take_over(settings, KernelBook::default(), snapshot);
        self.install_leader(id, supervisor, epoch);
        self.feed_leader(id, Input::MembershipFormed { epoch, members });
    }

    fn install_leader(&mut self, id: u64, supervisor: Supervisor, epoch: Epoch) {
        let now = self.now;
        if let Some(agent) = self.agents.get_mut(&id) {
            agent.leader = Some(Box::new(Leader::new(supervisor, epoch, now)));
        }
        self.leaders_so_far += 1;
        // It is asked what it wants before anything happened.
        self.schedule_batch(id, Duration::ZERO);
    }

    /// Queues an input for the supervisor of an agent, if it leads.
    pub(super) fn feed_leader(&mut self, id: u64, input: Input) {
        let Some(leader) = self.agents.get_mut(&id).and_then(|agent| agent.leader.as_mut()) else { return };
        if leader.outcome.is_some() {
            return;
        }
        if let Input::MembershipFormed { epoch, .. } = &input {
            leader.epoch = *epoch;
        }
        leader.inbox.push(input);
        // The thread is busy sometimes, and then finds much to do.
        let busy = if self.random.one_in(40) { 400 } else { 1 };
        let delay = self.random.up_to_ms(busy);
        self.schedule_batch(id, delay);
    }

    fn schedule_batch(&mut self, id: u64, delay: Duration) {
        let Some(leader) = self.agents.get_mut(&id).and_then(|agent| agent.leader.as_mut()) else { return };
        if !std::mem::replace(&mut leader.batch_due, true) {
            self.at(self.now + delay, Event::Batch(id));
        }
    }

    /// The supervisor handles all inputs that have come, and decides.
    pub(super) fn run_batch(&mut self, id: u64) {
        let now = self.now;
        let Some(agent) = self.agents.get_mut(&id) else { return };
        let Some(mut leader) = agent.leader.take() else { return };
        leader.batch_due = false;
        self.check_replicated(id, &leader);
        let own_now = now.saturating_sub(leader.made_at);
        let mut inputs = std::mem::take(&mut leader.inbox);
        if leader.supervisor.deadline().is_some_and(|due| due <= own_now) {
            inputs.push(Input::Tick);
        }
        let mut effects = Vec::new();
        for input in inputs {
            self.input_observed(id, &leader, &input);
            if self.traces() && !is_progress(&input) {
                self.trace(|| format!("L{id} ← {input:?}"));
            }
            let before = effects.len();
            leader.supervisor.on(own_now, input, &mut effects);
            self.effects_asked(id, &effects[before..]);
        }
        let phase = leader.supervisor.phase_name();
        let before = effects.len();
        leader.supervisor.settle(own_now, &mut effects);
        self.effects_asked(id, &effects[before..]);
        let after = leader.supervisor.phase_name();
        if phase != after {
            self.trace(|| format!("L{id} is {after}, was {phase}"));
        }
        self.settled(id, &leader, own_now);
        let made_at = leader.made_at;
        let deadline = leader.supervisor.deadline();
        if let Some(agent) = self.agents.get_mut(&id) {
            agent.leader = Some(leader);
        }
        self.apply_all(id, effects);
        if let Some(due) = deadline {
            self.wake_leader_at(id, (made_at + due).max(now));
        }
    }

    fn wake_leader_at(&mut self, id: u64, at: Time) {
        let Some(leader) = self.agents.get_mut(&id).and_then(|agent| agent.leader.as_mut()) else { return };
        if leader.outcome.is_none() && leader.wake.is_none_or(|wake| wake > at) {
            leader.wake = Some(at);
            self.at(at, Event::LeaderWake { agent: id, at });
        }
    }

    /// The deadline of a supervisor may have come.
    pub(super) fn wake_leader(&mut self, id: u64, at: Time) {
        let now = self.now;
        let Some(leader) = self.agents.get_mut(&id).and_then(|agent| agent.leader.as_mut()) else { return };
        if leader.wake == Some(at) {
            leader.wake = None;
        }
        if leader.batch_due {
            return;
        }
        match leader.supervisor.deadline().map(|due| leader.made_at + due) {
            Some(due) if due <= now => {
                self.count_tick(id);
                self.run_batch(id);
            }
            Some(due) => self.wake_leader_at(id, due),
            None => {}
        }
    }

    /// Carries out the effects of a batch, unless the leader dies between two of them.
    fn apply_all(&mut self, id: u64, effects: Vec<Effect>) {
        for effect in effects {
            if !self.agents.contains_key(&id) {
                return;
            }
            if self.crash_due(&effect) {
                self.trace(|| format!("L{id} dies before {effect:?}"));
                return self.kill_agent(id, true);
            }
            self.trace(|| format!("L{id} → {effect:?}"));
            self.effect_observed(id, &effect);
            self.apply_effect(id, effect);
        }
    }

    fn apply_effect(&mut self, id: u64, effect: Effect) {
        let now = self.now;
        match effect {
            Effect::Send { node, command } => {
                let epoch = self.agents.get(&id).and_then(|agent| Some(agent.leader.as_ref()?.epoch));
                self.send_command(id, node, epoch.unwrap_or_default(), command);
            }
            Effect::Journal(_) | Effect::WriteRunFile { .. } | Effect::NoteChunk(_) => {}
            Effect::Answer { id: request, .. } => {
                let leader = self.agents.get_mut(&id).and_then(|agent| agent.leader.as_mut());
                leader.into_iter().for_each(|leader| _ = leader.requests.remove(&request));
            }
            Effect::FindCheckpoint => self.store_task(id, StoreTask::Find),
            Effect::SetAsideCheckpoint { path, .. } => self.store_task(id, StoreTask::SetAside(path)),
            Effect::Commit(complete) => self.store_task(id, StoreTask::Commit(complete)),
            Effect::MakeRoom(_) => self.store_task(id, StoreTask::MakeRoom),
            Effect::DiscardAttempt { attempt, below } => {
                self.store_task(id, StoreTask::Discard { attempt, below });
            }
            Effect::MakeLogDir { round } => {
                let at = self.disk_ready_at();
                self.at(at, Event::LogDir { agent: id, round });
            }
            Effect::DigestProgram => {
                let delay = self.random.up_to_ms(300);
                let input = Input::ProgramDigest { digest: "d".to_owned() };
                self.at(now + delay, Event::Leader { agent: id, input: Box::new(input) });
            }
            Effect::ExpelNode { node, reason } => {
                self.on_membership(id, |membership, now| membership.expel(now, node, reason));
            }
            Effect::RejoinMembership => self.on_membership(id, |membership, now| membership.join(now)),
            Effect::FinishMembership { epoch } => {
                self.on_membership(id, |membership, now| membership.finished(now, transport::round_of(epoch)));
            }
            Effect::EndMembershipRound { epoch, end, number, wait } => {
                self.end_membership_round(id, epoch, end, (number, wait));
            }
            Effect::EndMembership(end) => self.on_membership(id, |membership, now| membership.close_run(now, end)),
            Effect::CountStoreClients => {
                let delay = self.random.up_to_ms(5);
                let input = Input::StoreClients { seen: 0 };
                self.at(now + delay, Event::Leader { agent: id, input: Box::new(input) });
            }
            Effect::AcquireRunDir => self.try_lock(id, now + LOCK_WAIT_MAX),
            Effect::CloseControl => {
                let leader = self.agents.get_mut(&id).and_then(|agent| agent.leader.as_mut());
                leader.into_iter().for_each(|leader| leader.control_open = false);
            }
            Effect::HandOff(snapshot) => self.hand_off(id, *snapshot),
            Effect::Finish(outcome) => self.leader_finished(id, *outcome),
        }
    }

    /// The leader leaves the lead to another node.
    fn hand_off(&mut self, id: u64, snapshot: RunSnapshot) {
        let now = self.now;
        let Some(agent) = self.agents.get(&id) else { return };
        let epoch = agent.leader.as_ref().map(|leader| leader.epoch).unwrap_or_default();
        for node in agent.membership.followers() {
            self.send_command(id, node, epoch, NodeCommand::ReplicateSnapshot(Box::new(snapshot.clone())));
        }
        self.on_membership(id, |membership, now| membership.hand_off(now));
        self.at(now + HAND_OFF, Event::Leader { agent: id, input: Box::new(Input::HandedOff) });
    }

    fn leader_finished(&mut self, id: u64, outcome: RunOutcome) {
        let now = self.now;
        self.run_finished(id, &outcome);
        if let Some(leader) = self.agents.get_mut(&id).and_then(|agent| agent.leader.as_mut()) {
            leader.outcome = Some(outcome);
        }
        if self.disk.lock == Some(id) {
            self.disk.lock = None;
        }
        if !self.plan.programs {
            self.at(now + END_WAIT, Event::AgentExits(id));
        }
    }

    /// Gets the lock of the run directory, or tries again.
    pub(super) fn try_lock(&mut self, id: u64, until: Time) {
        let now = self.now;
        match self.disk.lock {
            Some(other) if other != id && now < until => {
                self.at(now + LOCK_PERIOD, Event::Lock { agent: id, until });
            }
            Some(other) if other != id => {
                let error = format!("agent {other} holds the lock");
                self.feed_leader(id, Input::RunDirAcquired(Err(error)));
            }
            Some(_) | None => {
                self.disk.lock = Some(id);
                self.feed_leader(id, Input::RunDirAcquired(Ok(())));
            }
        }
    }

    /// The directory for the logs of a round is there.
    pub(super) fn make_log_dir(&mut self, id: u64, round: u64) {
        if let Some(until) = self.disk.hung_until.filter(|until| *until > self.now) {
            return self.at(until, Event::LogDir { agent: id, round });
        }
        if self.disk.lock == Some(id) {
            self.disk.log_dirs.insert(round);
        }
        self.feed_leader(id, Input::LogDirMade { round, error: None });
    }

    fn store_task(&mut self, id: u64, task: StoreTask) {
        let Some(leader) = self.agents.get_mut(&id).and_then(|agent| agent.leader.as_mut()) else { return };
        leader.tasks.push_back(task);
        self.next_task(id);
    }

    fn next_task(&mut self, id: u64) {
        let at = self.disk_ready_at();
        let Some(leader) = self.agents.get_mut(&id).and_then(|agent| agent.leader.as_mut()) else { return };
        if leader.working || leader.tasks.is_empty() {
            return;
        }
        leader.working = true;
        self.at(at, Event::TaskDone(id));
    }

    /// The thread has carried out its first task.
    pub(super) fn task_done(&mut self, id: u64) {
        let now = self.now;
        if let Some(until) = self.disk.hung_until.filter(|until| *until > now) {
            return self.at(until, Event::TaskDone(id));
        }
        let holds = self.disk.lock == Some(id);
        let Some(leader) = self.agents.get_mut(&id).and_then(|agent| agent.leader.as_mut()) else { return };
        leader.working = false;
        let Some(task) = leader.tasks.pop_front() else { return };
        let input = if holds { self.carry_out(task) } else { refused(task) };
        if let Some(input) = input {
            self.feed_leader(id, input);
        }
        self.next_task(id);
    }

    fn carry_out(&mut self, task: StoreTask) -> Option<Input> {
        match task {
            StoreTask::Find => {
                self.disk.discard_all();
                let found = self.disk.newest().map(|found| FoundCheckpoint { step: found.0, path: found.1 });
                Some(Input::CheckpointFound(Ok(found)))
            }
            StoreTask::SetAside(path) => {
                let damaged = self.disk.set_aside(&path);
                Some(Input::CheckpointSetAside(Ok(damaged.then(|| "it is damaged".to_owned()))))
            }
            StoreTask::Commit(complete) => Some(self.commit(&complete)),
            StoreTask::MakeRoom => {
                let removed = self.disk.make_room();
                if removed {
                    self.disk.full_until = None;
                }
                Some(Input::RoomMade { removed })
            }
            StoreTask::Discard { attempt, below } => {
                self.disk.discard(&attempt, below);
                None
            }
        }
    }

    fn commit(&mut self, complete: &CompleteCheckpoint) -> Input {
        let CompleteCheckpoint { step, attempt, metric, .. } = complete;
        let result = if self.disk.is_full(self.now) {
            Err(CommitFailure { error: "no space left on device".to_owned(), disk_full: true, fenced: false })
        } else {
            self.check_commit(complete);
            let leader = self.disk.lock.and_then(|id| Some((id, self.agents.get(&id)?.leader.as_ref()?.epoch)));
            if let Some(leader) = leader {
                self.leader_felt(leader.0, leader.1);
            }
            let path = self.disk.commit(attempt, *step);
            Ok(CommittedCheckpoint { path, bytes: 1, metric: *metric })
        };
        Input::CommitEnded { step: *step, result }
    }
}

/// What a task comes to when another leader holds the run directory.
fn refused(task: StoreTask) -> Option<Input> {
    let error = "another leader has the run directory".to_owned();
    match task {
        StoreTask::Commit(CompleteCheckpoint { step, .. }) => {
            let result = Err(CommitFailure { error, disk_full: false, fenced: true });
            Some(Input::CommitEnded { step, result })
        }
        StoreTask::Find => {
            Some(Input::CheckpointFound(Err(crate::supervisor::input::FindFailure { error, none_whole: false })))
        }
        StoreTask::SetAside(_) => Some(Input::CheckpointSetAside(Err(error))),
        StoreTask::MakeRoom => Some(Input::RoomMade { removed: false }),
        StoreTask::Discard { .. } => None,
    }
}

/// Inputs that say nothing but that nodes live.
fn is_progress(input: &Input) -> bool {
    matches!(input, Input::Node { event: enn_common::wire::node_agent::NodeEvent::Progress(_), .. } | Input::Tick)
}
