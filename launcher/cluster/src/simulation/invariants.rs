//! What must hold, whatever happens. The rules see what passes between the machines, never what the machines think:
//!
//! 1. Effects of one leader in an epoch; a fenced side commits and writes nothing.
//! 2. A seat and a rank have one living worker; ranks are 0 to the size of the world; a device is free after `Settled`.
//! 3. Names of workers, rounds and attempts only rise, across leaders too.
//! 4. One round is under way, and its assignments agree.
//! 5. The store is reset only when no worker lives that meets others there (`enn train` never resets it).
//! 6. A commit has the shard of every rank of one attempt; a step has one commit at a time; a ticket is written or released once.
//! 7. The last holder of unsaved state is ended only if it is fenced, late, failed, or a second signal asks for it.
//! 8. The newest checkpoint is loaded only if no whole state stands.
//! 9. The restart budget is never exceeded.
//! 10. An accepted stop is in every later snapshot, and what a successor must know is in a snapshot at once.
//! 11. A request is answered once.
//! 12. Commands go to nodes that sent their inventory.
//! 13. The journal tells of a start before its end, and of one end of each round.
//! 14. Counters equal a recount, and a deadline lies in the future.
//! 15. SIGKILL comes in time, and no worker outlives the time after which its node gives up a lost link.
//! 16. A script that stands by gets the seat for which its node would start a new process.
//! 17. A world that could be smaller shares the parts of a step that the leader knows.
//! 18. A device that is left out is sick, and no worker gets it.

use super::{
    faults::Fault,
    groups::{GroupKey, attempt_of, whole_step},
    leader_services::Leader,
    links::Machine,
    processes::{EndedBy, Pid, Process, Stage, TrainingState},
    programs::ProgramRounds,
    run_plan::Sharding,
    world::{Time, World},
};
use crate::{
    node_agent::{effect::NodeEnd, input::NodeInput},
    rendezvous::NodeId,
    supervisor::{
        CompleteCheckpoint, MembershipEnd,
        effect::{Effect, RequestId, RunOutcome},
        input::Input,
    },
};
use enn_common::{
    checkpoint::name,
    config::train::Recovery,
    event::EventKind,
    id::WorkerId,
    wire::{
        command::{Answer, Request},
        message::{Assignment, FromWorker, WorkerTask},
        node_agent::{Epoch, NodeCommand, NodeEvent, RunSnapshot},
    },
};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// Longest wait of a user for an answer.
const ANSWER_MAX: Duration = Duration::from_millis(8200);
/// Longest wait of an answer for nodes that do not say that they know what was asked.
const ACK_WAIT_MAX: Duration = Duration::from_secs(3);
/// Time in which a worker leaves its round.
const HALT_WAIT: Duration = Duration::from_millis(9900);
/// Time from an input to the decision on it.
const BATCH_MAX: Duration = Duration::from_millis(500);
/// A node agent kills a process at most so late.
const KILL_LATE_MAX: Duration = Duration::from_millis(50);
/// Batches between two recounts.
const RECOUNT_PERIOD: u64 = 64;

/// A worker as a leader can know it from what it was told.
#[derive(Debug, Clone)]
struct SeenWorker {
    node: NodeId,
    /// Index of the device of its last seat.
    slot: Option<u32>,
    /// It was ready once, so that it has memory of the device.
    has_device: bool,
    /// It is connected, as far as the leader has heard.
    connected: bool,
    settled: bool,
    /// Round that the leader had begun when it first heard of the worker.
    met_in: Option<u64>,
}

/// A request that was accepted or refused, or will be.
#[derive(Debug, Clone)]
struct SeenRequest {
    request: Request,
    at: Time,
}

/// What one leader was told and did.
#[derive(Debug, Default)]
pub(super) struct LeaderView {
    /// Membership that it was told of last.
    epoch: Option<Epoch>,
    /// The nodes agree again: an inventory of the last membership counts no more.
    reopened: bool,
    inventoried: BTreeSet<NodeId>,
    workers: BTreeMap<WorkerId, SeenWorker>,
    last_worker: Option<WorkerId>,
    round: Option<u64>,
    /// Seats of the present round.
    pub(super) seats: BTreeMap<WorkerId, (NodeId, Assignment)>,
    /// Whether `RoundStarted` was written for it.
    started: bool,
    ended_rounds: BTreeSet<u64>,
    committing: BTreeSet<u64>,
    requests: BTreeMap<RequestId, SeenRequest>,
    /// The newest snapshot that a node has acknowledged.
    acked: BTreeMap<NodeId, u64>,
    /// The newest snapshot that other nodes were sent.
    newest_sent: Option<RunSnapshot>,
    /// The first snapshot with the request to stop that was sent to a node, by its number of requests.
    stop_sent: BTreeMap<NodeId, u64>,
    leaving: BTreeSet<String>,
    /// It knows into how many parts a step is cut.
    knows_parts: bool,
    /// When a drain was last taken back. Its answer may come in the same batch.
    stayed_at: Option<Time>,
    fenced: bool,
    stop_at: Option<Time>,
    /// It knew of the stop when its last batch ended.
    stop_known: bool,
    stop_answered: bool,
    second: bool,
    over: bool,
    /// When its run began to end as failed: workers have the same time to save.
    giving_up_at: Option<Time>,
    /// Epoch ends that its journal owes.
    owed: BTreeSet<u64>,
    /// What became of each snapshot in memory.
    tickets: BTreeMap<(WorkerId, u64), TicketUse>,
    /// Furthest whole state when it learned of the stop.
    stop_state: Option<u64>,
    batches: u64,
}

impl LeaderView {
    /// Whether the leader has heard that the worker is connected.
    pub(super) fn knows_connected(&self, worker: WorkerId) -> bool {
        self.workers.get(&worker).is_some_and(|seen| seen.connected)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TicketUse {
    Persisting,
    Failed,
    Done,
}

/// Everything that was seen.
#[derive(Debug, Default)]
pub(super) struct Observer {
    machines: BTreeMap<u64, Machine>,
    lost_silently: BTreeSet<u64>,
    leaders_of_epoch: BTreeMap<Epoch, u64>,
    felt_leaders: BTreeMap<Epoch, u64>,
    views: BTreeMap<u64, LeaderView>,
    workers_started: BTreeSet<WorkerId>,
    attempts: BTreeMap<String, u32>,
    last_round: Option<u64>,
    node_rounds: BTreeMap<u64, u64>,
    /// Processes whose start and end a leader wrote. One that was frozen may write what its successor has written.
    journal_started: BTreeSet<(u64, u32)>,
    journal_ended: BTreeSet<(u64, u32)>,
    /// Every later snapshot has the request to stop.
    stop_is_safe: bool,
    last_fault_at: Time,
    fault_weight: u64,
    joins: u64,
    requests: u64,
    pub(super) rounds: u64,
    pub(super) steps: u64,
    pub(super) last_step_at: Time,
    /// Steps done in the newest round, and rounds in a row that failed without one.
    steps_in_round: u64,
    failures_in_row: u32,
    pub(super) finished: Option<RunOutcome>,
    /// Hangs whose stacks were written.
    pub(super) stacks: u64,
    pub(super) node_ends: BTreeMap<u64, NodeEnd>,
    pub(super) programs: ProgramRounds,
    /// Leader and number of the round of programs that was begun last.
    pub(super) last_group: Option<(u64, u64)>,
    last_stop_end: BTreeMap<u64, Time>,
}

impl Observer {
    pub(super) fn machine_of(&self, agent: u64) -> Option<Machine> {
        self.machines.get(&agent).copied()
    }

    pub(super) fn note_agent(&mut self, agent: u64, machine: Machine) {
        self.machines.insert(agent, machine);
    }

    pub(super) fn is_lost_silently(&self, agent: u64) -> bool {
        self.lost_silently.contains(&agent)
    }

    pub(super) fn note_fault(&mut self, fault: &Fault) {
        self.fault_weight += match fault {
            Fault::Relief | Fault::SecondSignal { .. } => 0,
            Fault::CrashLoop(count) => u64::from(*count),
            Fault::CutNode { .. }
            | Fault::KillNode { .. }
            | Fault::StopNode(..)
            | Fault::StopLeader(_)
            | Fault::CutLeader(_) => 2,
            _ => 1,
        };
    }

    pub(super) fn note_wake(&mut self, agent: u64, now: Time) {
        self.last_stop_end.insert(agent, now);
    }

    /// A sick device ended a worker.
    pub(super) fn note_device_failure(&mut self) {
        self.fault_weight += 1;
    }

    pub(super) fn host_of(&self, node: NodeId) -> String {
        self.machines.get(&node.0).map_or_else(String::new, |machine| format!("n{}", machine.0))
    }

    /// Rounds that faults, newcomers and requests explain.
    pub(super) fn rounds_max(&self) -> u64 {
        self.fault_weight + self.joins + self.requests + 3
    }
}

/// Whether a process is of use: it lives, works, and is not about to end.
fn is_useful(process: &Process) -> bool {
    process.works() && !process.is_given_up() && process.stage != Stage::Ending
}

impl World {
    fn view(&mut self, id: u64) -> &mut LeaderView {
        self.observer.views.entry(id).or_default()
    }

    /// The furthest step whose whole state these processes hold.
    fn held_by<'a>(processes: impl Iterator<Item = &'a Process>) -> Option<u64> {
        let held: Vec<TrainingState> = processes.filter_map(|process| process.state).collect();
        whole_step(&held)
    }

    /// Members of a membership are known to a node; it leads them if it is told who they are.
    pub(super) fn membership_formed(&mut self, id: u64, epoch: Epoch, nodes: &[NodeId]) {
        if nodes.is_empty() {
            return;
        }
        self.observer.leaders_of_epoch.insert(epoch, id);
    }

    /// A leader had an effect on another node, or on disk: no other one has in the same epoch.
    pub(super) fn leader_felt(&mut self, id: u64, epoch: Epoch) {
        let other = *self.observer.felt_leaders.entry(epoch).or_insert(id);
        if other != id {
            self.violation("1", format!("n{id} and n{other} both lead {epoch:?}"));
        }
    }

    pub(super) fn membership_over(&mut self, id: u64) {
        self.trace(|| format!("the membership is over for n{id}"));
    }

    pub(super) fn lead_taken(&mut self, id: u64, snapshot: &RunSnapshot) {
        self.check_stop_kept(id, snapshot, "the snapshot of a new leader");
        self.processes.values_mut().for_each(|process| process.ordered_away = false);
        self.snapshot_learned(id, snapshot);
    }

    /// A leader learns from a snapshot that the run ends as failed.
    fn snapshot_learned(&mut self, id: u64, snapshot: &RunSnapshot) {
        let now = self.now;
        self.view(id).knows_parts |= snapshot.parts.is_some();
        if snapshot.giving_up.is_some() {
            self.view(id).giving_up_at.get_or_insert(now);
        }
    }

    /// An accepted stop is in every later snapshot.
    fn check_stop_kept(&mut self, id: u64, snapshot: &RunSnapshot, what: &str) {
        let promised = self.observer.stop_is_safe || self.view(id).stop_answered;
        if promised && snapshot.stop.is_none() {
            self.violation("10", format!("{what} of n{id} has lost the stop that was accepted: {snapshot:?}"));
        }
    }

    pub(super) fn request_sent(&mut self, id: u64, number: RequestId, request: &Request) {
        let at = self.now;
        self.observer.requests += 1;
        self.view(id).requests.insert(number, SeenRequest { request: request.clone(), at });
    }

    /// A node state gets an input.
    pub(super) fn node_input_observed(&mut self, id: u64, input: &NodeInput) {
        if let NodeInput::Command { command: NodeCommand::BeginRound { round, .. }, .. } = input {
            let before = self.observer.node_rounds.insert(id, *round);
            if before.is_some_and(|before| before >= *round) {
                self.violation("3", format!("n{id} is told of round {round} after {before:?}"));
            }
        }
    }

    /// A supervisor gets an input.
    pub(super) fn input_observed(&mut self, id: u64, leader: &Leader, input: &Input) {
        let epoch = self.view(id).epoch.unwrap_or(leader.epoch);
        match input {
            // The next membership may have formed already, when many inputs wait.
            Input::MembershipFormed { epoch, .. } => {
                let view = self.view(id);
                view.epoch = Some(*epoch);
                view.reopened = false;
            }
            Input::MembershipReopened => self.view(id).reopened = true,
            Input::Node { node, event } => self.event_observed(id, *node, event, epoch),
            Input::NodeLost { node, .. } => self.node_lost_for(id, *node),
            Input::MembershipOver(end) => {
                self.view(id).over = true;
                if let MembershipEnd::Failed { fenced: true, .. } = end {
                    self.view(id).fenced = true;
                }
            }
            Input::CommitEnded { step, result } => {
                self.view(id).committing.remove(step);
                if result.as_ref().is_err_and(|failure| failure.fenced) {
                    self.view(id).fenced = true;
                }
            }
            _ => {}
        }
    }

    fn node_lost_for(&mut self, id: u64, node: NodeId) {
        let view = self.view(id);
        view.inventoried.remove(&node);
        let gone = view.workers.values_mut().filter(|worker| worker.node == node);
        gone.for_each(|worker| worker.settled = true);
    }

    fn event_observed(&mut self, id: u64, node: NodeId, event: &NodeEvent, epoch: Epoch) {
        match event {
            NodeEvent::Inventory(inventory) if inventory.epoch == epoch && !self.view(id).reopened => {
                let view = self.view(id);
                let met_in = view.round;
                view.inventoried.insert(node);
                for living in &inventory.living {
                    let slot = living.seat.map(|_| living.local_rank);
                    let has_device = living.stateful;
                    let seen = SeenWorker { node, slot, has_device, connected: false, settled: false, met_in };
                    view.workers.entry(living.worker).or_insert(seen).connected = living.connected;
                }
                if let Some(snapshot) = &inventory.snapshot {
                    self.snapshot_learned(id, snapshot);
                }
                if inventory.stop.is_some() || inventory.snapshot.as_ref().is_some_and(|known| known.stop.is_some()) {
                    self.stop_learned(id);
                }
            }
            NodeEvent::Settled { worker, .. } | NodeEvent::StartFailed { worker, .. } => {
                self.view(id).workers.get_mut(worker).into_iter().for_each(|seen| seen.settled = true);
            }
            NodeEvent::Connected { worker, .. } => {
                self.view(id).workers.get_mut(worker).into_iter().for_each(|seen| seen.connected = true);
            }
            NodeEvent::Disconnected { worker, .. } => {
                self.view(id).workers.get_mut(worker).into_iter().for_each(|seen| seen.connected = false);
            }
            NodeEvent::Signal { second, .. } => {
                self.view(id).second |= second;
                self.stop_learned(id);
            }
            NodeEvent::DeviceFailed(failure) => self.device_failure_observed(id, node, failure),
            NodeEvent::SnapshotAcked { requests } => {
                let acked = self.view(id).acked.entry(node).or_default();
                *acked = (*acked).max(*requests);
            }
            NodeEvent::SnapshotWritten { worker, ticket, result } => {
                let became = if result.is_ok() { TicketUse::Done } else { TicketUse::Failed };
                self.view(id).tickets.insert((*worker, *ticket), became);
            }
            NodeEvent::WorkerMessage { worker, round, message } => {
                let view = self.view(id);
                let present = round.is_some() && *round == view.round;
                match message.as_ref() {
                    FromWorker::BatchParts { .. } => view.knows_parts = true,
                    FromWorker::Ready { .. } if present => {
                        view.workers.get_mut(worker).into_iter().for_each(|seen| seen.has_device = true);
                    }
                    FromWorker::EpochEnded(report) if present && view.seats.contains_key(worker) => {
                        view.owed.insert(report.step);
                    }
                    _ => {}
                }
            }
            _ => {}
        }
    }

    /// A leader learns that the run is to stop.
    fn stop_learned(&mut self, id: u64) {
        let now = self.now;
        if self.view(id).stop_at.is_some() {
            return;
        }
        let known = self.view(id).inventoried.clone();
        let counts = |process: &&Process| is_useful(process) && known.contains(&NodeId(process.agent));
        let held = Self::held_by(self.processes.values().filter(counts));
        let view = self.view(id);
        view.stop_at = Some(now);
        view.stop_state = held;
    }

    /// A supervisor asked for effects, on an input or when it decided.
    pub(super) fn effects_asked(&mut self, id: u64, effects: &[Effect]) {
        for effect in effects {
            let durable = matches!(
                effect,
                Effect::Commit(_)
                    | Effect::MakeRoom(_)
                    | Effect::DiscardAttempt { .. }
                    | Effect::WriteRunFile { .. }
                    | Effect::NoteChunk(_)
                    | Effect::MakeLogDir { .. }
                    | Effect::SetAsideCheckpoint { .. }
                    | Effect::FindCheckpoint
                    | Effect::Journal(_)
            );
            if durable && self.view(id).fenced {
                self.violation("1", format!("n{id} is fenced and writes: {effect:?}"));
            }
            if let Effect::Send { node, command } = effect
                && !self.view(id).inventoried.contains(node)
            {
                self.violation("12", format!("n{id} sends to n{}, which is not inventoried: {command:?}", node.0));
            }
        }
    }

    /// A supervisor has decided.
    pub(super) fn settled(&mut self, id: u64, leader: &Leader, own_now: Time) {
        let now = self.now;
        let phase = leader.supervisor.phase_name();
        let deadline = leader.supervisor.deadline();
        let rests = matches!(phase, "Running" | "Paused" | "Over") || leader.supervisor.is_over();
        if !rests && deadline.is_none() {
            self.violation("14", format!("n{id} waits in {phase} without a deadline"));
        }
        let view = self.view(id);
        view.batches += 1;
        view.stop_known = view.stop_at.is_some();
        if view.batches.is_multiple_of(RECOUNT_PERIOD)
            && let Err(error) = leader.supervisor.recount()
        {
            self.violation("14", format!("n{id} at {:.3} s: {error}", own_now.as_secs_f64()));
        }
        let woke = self.observer.last_stop_end.get(&id).copied().unwrap_or_default();
        let late = leader.requests.keys().find(|request| {
            let asked = self.observer.views.get(&id).and_then(|view| view.requests.get(request)).map(|seen| seen.at);
            asked.is_some_and(|asked| asked.max(woke) + ANSWER_MAX < now)
        });
        if let Some(request) = late.copied() {
            self.violation("liveness", format!("n{id} has not answered request {request:?} for 8 s"));
        }
    }

    /// A leader carries out an effect.
    pub(super) fn effect_observed(&mut self, id: u64, effect: &Effect) {
        match effect {
            Effect::Send { node, command } => self.command_observed(id, *node, command),
            Effect::Journal(event) => self.journal_observed(id, event),
            Effect::Answer { id: request, answer } => self.answer_observed(id, *request, answer),
            Effect::Commit(complete) => self.commit_observed(id, complete),
            Effect::HandOff(snapshot) => self.check_stop_kept(id, snapshot, "the hand-off"),
            Effect::Finish(outcome) => self.finish_observed(id, outcome),
            _ => {}
        }
    }

    fn command_observed(&mut self, id: u64, node: NodeId, command: &NodeCommand) {
        match command {
            NodeCommand::Start { worker, seat, standby, .. } => {
                let slot = seat.map(|seat| seat.local_rank);
                if let Some(slot) = slot.or(standby.as_ref().map(|standby| standby.local_rank)) {
                    self.check_left_out(id, node, slot, *worker);
                }
                self.start_observed(id, node, *worker, slot);
            }
            NodeCommand::BeginRound { round, seats, snapshot } => {
                self.check_stop_kept(id, snapshot, "the round's snapshot");
                self.snapshot_sent(id, node, snapshot);
                self.round_observed(id, node, *round, seats);
            }
            NodeCommand::BeginGroup { round, .. } => self.group_observed(id, *round),
            NodeCommand::ReplicateSnapshot(snapshot) => {
                self.check_stop_kept(id, snapshot, "a replicated snapshot");
                self.snapshot_sent(id, node, snapshot);
            }
            NodeCommand::Dismiss { worker, .. } => self.ended_by_command(id, node, &[*worker]),
            NodeCommand::Stop { workers, .. } => self.ended_by_command(id, node, workers),
            NodeCommand::PersistSnapshot { worker, ticket, .. } => {
                self.ticket_used(id, (*worker, *ticket), TicketUse::Persisting);
            }
            NodeCommand::ReleaseSnapshot { worker, ticket } => {
                self.ticket_used(id, (*worker, *ticket), TicketUse::Done);
            }
            _ => {}
        }
    }

    fn snapshot_sent(&mut self, id: u64, node: NodeId, snapshot: &RunSnapshot) {
        let view = self.view(id);
        if snapshot.stop.is_some() {
            view.stop_sent.entry(node).or_insert(snapshot.requests);
        }
        view.newest_sent = Some(snapshot.clone());
    }

    /// What the next leader must know was sent to the other nodes in the batch before.
    pub(super) fn check_replicated(&mut self, id: u64, leader: &Leader) {
        let phase = leader.supervisor.phase_name();
        let view = self.view(id);
        let lasts =
            matches!(phase, "TakingOver" | "Gathering" | "HandingOff" | "Closing" | "Over") || view.fenced || view.over;
        let Some(sent) = view.newest_sent.clone().filter(|_| !lasts && view.inventoried.len() > 1) else { return };
        let known = leader.supervisor.snapshot();
        let newest = RunSnapshot { epoch: sent.epoch, requests: sent.requests, ..known.clone() };
        if newest != sent {
            self.violation("10", format!("n{id} in {phase} has not sent what it knows: {known:?}, sent {sent:?}"));
        }
    }

    fn start_observed(&mut self, id: u64, node: NodeId, worker: WorkerId, slot: Option<u32>) {
        if !self.observer.workers_started.insert(worker) {
            self.violation("3", format!("n{id} gives the name of worker {worker} a second time"));
        }
        let view = self.view(id);
        let before = view.last_worker.replace(worker);
        if before.is_some_and(|before| before >= worker) {
            self.violation("3", format!("n{id} starts worker {worker} after {before:?}"));
        }
        if self.view(id).stop_known {
            self.violation("second list", format!("n{id} starts worker {worker} after the run was to stop"));
        }
        if let Some(slot) = slot {
            self.check_slot(id, node, slot, worker);
            self.check_spares(id, node, worker);
        }
        let seen = SeenWorker { node, slot, has_device: false, connected: false, settled: false, met_in: None };
        self.view(id).workers.insert(worker, seen);
    }

    /// A script is started for a seat: none stands by on its node, as far as the leader knows.
    fn check_spares(&mut self, id: u64, node: NodeId, worker: WorkerId) {
        let view = self.view(id);
        let stands_by = |seen: &SeenWorker, other: &WorkerId| {
            seen.node == node && seen.connected && !seen.settled && !view.seats.contains_key(other)
        };
        let others: Vec<WorkerId> =
            view.workers.iter().filter(|(other, seen)| stands_by(seen, other)).map(|(other, _)| *other).collect();
        let is_spare = |other: &WorkerId| {
            let process = self.pid_of(node.0, *other).and_then(|pid| self.processes.get(&pid));
            let waits = |process: &Process| process.seat().is_none() && !process.has_device;
            process.is_some_and(|process| process.works() && waits(process) && !process.is_given_up())
        };
        if let Some(spare) = others.into_iter().find(|other| self.are_scripts() && is_spare(other)) {
            self.violation("16", format!("n{id} starts worker {worker} on n{}, where spare {spare} stands by", node.0));
        }
    }

    /// A slot is given to a worker: nobody else has its device.
    fn check_slot(&mut self, id: u64, node: NodeId, slot: u32, worker: WorkerId) {
        let other = self.view(id).workers.iter().find(|seen| {
            *seen.0 != worker
                && seen.1.node == node
                && seen.1.slot == Some(slot)
                && seen.1.has_device
                && !seen.1.settled
        });
        if let Some(other) = other.map(|other| *other.0) {
            let what = format!(
                "n{id} gives device {slot} of n{} to worker {worker} before worker {other} has settled",
                node.0
            );
            self.violation("2", what);
        }
    }

    fn round_observed(&mut self, id: u64, node: NodeId, round: u64, seats: &BTreeMap<WorkerId, Assignment>) {
        if self.view(id).round != Some(round) {
            self.new_round(id, round);
        }
        for seen in seats {
            let (worker, seat) = seen;
            if seat.round != round {
                self.violation("4", format!("n{id} assigns round {} with round {round}", seat.round));
            }
            self.check_slot(id, node, seat.local_rank, *worker);
            let host = self.observer.host_of(node);
            let stops = self.view(id).stop_at.is_some() || Self::saves_only(seat);
            // Who leaves may have a part of the state that the others lack.
            let is_newcomer = self.view(id).workers.get(worker).is_none_or(|known| known.slot.is_none());
            let may_not_sit = self.plan.sharding == Sharding::Replicated || is_newcomer;
            if self.view(id).leaving.contains(&host) && !stops && may_not_sit {
                self.violation("second list", format!("n{id} seats worker {worker} on {host}, which is drained"));
            }
            let view = self.view(id);
            let before = view.workers.get_mut(worker).and_then(|known| known.slot.replace(seat.local_rank));
            if before != Some(seat.local_rank) {
                self.check_left_out(id, node, seat.local_rank, *worker);
            }
            let view = self.view(id);
            if view.seats.insert(*worker, (node, seat.clone())).is_some() {
                self.violation("4", format!("n{id} seats worker {worker} twice in round {round}"));
            }
        }
    }

    /// A leader begins a round.
    fn new_round(&mut self, id: u64, round: u64) {
        // One that was frozen may wake and begin a round that nobody takes part in.
        let holds = self.observer.leaders_of_epoch.last_key_value().is_some_and(|newest| *newest.1 == id);
        let last = self.observer.last_round;
        if holds && last.is_some_and(|last| last >= round) {
            self.violation("3", format!("n{id} begins round {round} after {last:?}"));
        }
        if holds {
            self.observer.last_round = Some(round);
        }
        self.count_failure(id);
        self.observer.rounds += 1;
        self.observer.steps_in_round = 0;
        let view = self.view(id);
        view.round = Some(round);
        view.seats.clear();
        view.started = false;
        view.owed.clear();
    }

    /// A round is over: whether it failed, and whether a step was done in it.
    fn count_failure(&mut self, id: u64) {
        let seats: Vec<WorkerId> = self.view(id).seats.keys().copied().collect();
        let failed = |worker: &WorkerId| {
            let process = self.processes.values().find(|process| process.worker == *worker);
            process.is_some_and(|process| process.ended_by == Some(EndedBy::Fault) && !process.is_given_up())
        };
        let failed = seats.iter().any(failed);
        let progress = self.observer.steps_in_round > 0;
        if progress && self.plan.on_failure == Recovery::Reform {
            self.observer.failures_in_row = 0;
        }
        self.observer.failures_in_row += u32::from(failed);
    }

    /// `RoundStarted` is written: all its assignments have been sent.
    fn round_started(&mut self, id: u64, round: u64, world: u32) {
        let view = self.view(id);
        view.started = true;
        let seats: Vec<(NodeId, Assignment)> = view.seats.values().cloned().collect();
        if view.round != Some(round) {
            self.violation("4", format!("n{id} writes that round {round} started, which it has not begun"));
        }
        if !self.disk.log_dirs.contains(&round) && self.disk.lock == Some(id) {
            self.violation("13", format!("n{id} writes that round {round} started before it has a directory for logs"));
        }
        let ranks: BTreeSet<u32> = seats.iter().map(|seat| seat.1.rank).collect();
        let dense = ranks.len() == seats.len() && ranks.iter().copied().eq(0..world);
        if !dense || seats.iter().any(|seat| seat.1.world_size != world) {
            self.violation("2", format!("ranks of round {round} of n{id} are {ranks:?} of {world}"));
        }
        self.check_parts(id, round, world);
        let slots: BTreeSet<(NodeId, u32)> = seats.iter().map(|seat| (seat.0, seat.1.local_rank)).collect();
        if slots.len() != seats.len() {
            self.violation("2", format!("two workers of round {round} of n{id} have one slot: {slots:?}"));
        }
        for seat in &seats {
            let local = seats.iter().filter(|other| other.0 == seat.0).count();
            if seat.1.local_world_size as usize != local {
                self.violation("4", format!("local world of round {round}: {} of {local}", seat.1.local_world_size));
            }
        }
        let tasks: BTreeSet<(String, Option<std::path::PathBuf>)> =
            seats.iter().map(|seat| attempt_of(&seat.1)).collect();
        if tasks.len() > 1 {
            self.violation("4", format!("tasks of round {round} of n{id} differ: {tasks:?}"));
        }
        let Some(task) = tasks.into_iter().next() else { return };
        if self.observer.attempts.insert(task.0.clone(), world).is_some() {
            self.violation("3", format!("attempt {} of n{id} is used twice", task.0));
        }
        let saves = seats.first().is_some_and(|seat| matches!(seat.1.task, WorkerTask::Save { .. }));
        self.check_budget(id, round, saves);
        self.check_kept(id, round);
    }

    fn check_parts(&mut self, id: u64, round: u64, world: u32) {
        let Some(parts) = self.plan.scripts.and_then(|scripts| scripts.parts) else { return };
        let reforms = self.plan.on_failure == Recovery::Reform;
        if reforms && self.view(id).knows_parts && world > self.plan.fewest() && !parts.get().is_multiple_of(world) {
            self.violation("17", format!("{world} ranks of round {round} of n{id} cannot share {parts} parts"));
        }
    }

    fn check_budget(&mut self, id: u64, round: u64, saves: bool) {
        let failures = self.observer.failures_in_row;
        let stops = self.view(id).stop_at.is_some() || saves;
        if failures > self.plan.max_restarts && !stops {
            let allowed = self.plan.max_restarts;
            self.violation("9", format!("n{id} begins round {round} after {failures} failures, {allowed} are allowed"));
        }
    }

    /// A round begins with the whole state that stands, if one does.
    fn check_kept(&mut self, id: u64, round: u64) {
        if self.plan.on_failure == Recovery::Restart || self.plan.scripts.is_some_and(|scripts| scripts.detached) {
            return;
        }
        let view = &self.observer.views[&id];
        if view.over {
            return;
        }
        let reachable = |process: &&Process| view.inventoried.contains(&NodeId(process.agent));
        let stands = |process: &&Process| is_useful(process) && process.stage == Stage::Idle;
        let standing = Self::held_by(self.processes.values().filter(reachable).filter(stands));
        let seated = |process: &&Process| view.seats.contains_key(&process.worker);
        let kept = Self::held_by(self.processes.values().filter(seated).filter(stands));
        if standing > kept && standing > self.disk.furthest.max(Some(0)) {
            let newest = self.disk.furthest;
            let what = format!(
                "round {round} of n{id} begins with {kept:?}, though {standing:?} stands ({newest:?} is saved)"
            );
            self.violation("8", what);
        }
    }

    /// A supervisor has workers ended.
    fn ended_by_command(&mut self, id: u64, node: NodeId, workers: &[WorkerId]) {
        for worker in workers {
            let Some(pid) = self.pid_of(node.0, *worker) else { continue };
            self.check_last_holder(id, pid);
        }
    }

    /// The last holder of unsaved state is not ended without a reason.
    fn check_last_holder(&mut self, id: u64, pid: Pid) {
        let now = self.now;
        let Some(process) = self.processes.get(&pid) else { return };
        let useful = is_useful(process);
        let over_at = process.over_at;
        let hung = self.plan.hang_timeout.is_some_and(|limit| now.saturating_sub(process.progress_at) >= limit);
        let grace = self.plan.grace;
        let node_ends = self.agents.get(&process.agent).is_none_or(|agent| agent.end.is_some());
        let view = &self.observer.views[&id];
        // A run that is to stop keeps half of its time for saving.
        let ends_at = [view.stop_at, view.giving_up_at].into_iter().flatten().min().map(|at| at + grace);
        let late = over_at.is_some_and(|at| {
            let half = ends_at.map(|end| end.saturating_sub(at) / 2).map(|half| half.saturating_sub(BATCH_MAX));
            now.saturating_sub(at) >= half.map_or(HALT_WAIT, |half| half.min(HALT_WAIT))
        });
        let grace_over = [view.stop_at, view.giving_up_at].into_iter().flatten().any(|at| now >= at + grace);
        let seen = view.workers.get(&process.worker);
        let given_up_before = seen.is_none_or(|seen| seen.settled);
        // Its node came back to a run that had begun anew without it.
        let came_late = seen.zip(process.seat()).is_some_and(|(seen, seat)| seen.met_in > Some(seat.round));
        let excused = late
            || given_up_before
            || came_late
            || hung
            || grace_over
            || node_ends
            || view.second
            || view.fenced
            || view.over
            || self.plan.on_failure == Recovery::Restart
            || self.all_scripts_restart(view)
            // Scripts are told to stop by a signal, and save as they like.
            || self.are_scripts() && view.stop_at.is_some()
            || !view.inventoried.contains(&NodeId(process.agent))
            || process.seat().is_some_and(|seat| view.round.is_some_and(|round| seat.round + 1 < round));
        let known = view.inventoried.clone();
        let counts = |other: &&Process| is_useful(other) && known.contains(&NodeId(other.agent));
        let before = Self::held_by(self.processes.values().filter(counts));
        self.processes.get_mut(&pid).into_iter().for_each(|process| process.ordered_away = true);
        if excused || !useful {
            return;
        }
        let after = Self::held_by(self.processes.values().filter(counts));
        if before > after && before > self.disk.furthest.max(Some(0)) {
            let saved = self.disk.furthest;
            self.violation(
                "7",
                format!("n{id} ends process {pid}, the last to hold step {before:?}; {saved:?} is saved"),
            );
        }
    }

    /// A node agent is told to end workers, with SIGKILL after a while.
    pub(super) fn end_ordered(&mut self, id: u64, command: &NodeCommand) {
        let ordered = match command {
            NodeCommand::Stop { workers, kill_after } => (workers.clone(), *kill_after),
            NodeCommand::Dismiss { worker, kill_after } => (vec![*worker], *kill_after),
            _ => return,
        };
        let by = self.now + ordered.1;
        for worker in ordered.0 {
            if let Some(process) = self.pid_of(id, worker).and_then(|pid| self.processes.get_mut(&pid)) {
                process.kill_by = Some(process.kill_by.map_or(by, |known| known.min(by)));
            }
        }
    }

    /// A node agent sends SIGKILL: in time, if it was not stopped meanwhile.
    pub(super) fn check_kill(&mut self, id: u64, pid: Pid) {
        let woke = self.observer.last_stop_end.get(&id).copied().unwrap_or_default();
        let by = self.processes.get(&pid).and_then(|process| process.kill_by).filter(|by| *by > woke);
        if by.is_some_and(|by| self.now > by + KILL_LATE_MAX) {
            self.violation("15", format!("n{id} kills process {pid} late: it had to by {by:?}"));
        }
    }

    /// A node agent ends a worker.
    pub(super) fn worker_given_up(&mut self, id: u64, worker: WorkerId) {
        if let Some(pid) = self.pid_of(id, worker) {
            self.processes.get_mut(&pid).into_iter().for_each(|process| process.given_up = true);
        }
    }

    fn ticket_used(&mut self, id: u64, ticket: (WorkerId, u64), used: TicketUse) {
        let before = self.view(id).tickets.insert(ticket, used);
        let again = match (before, used) {
            (None, _) | (Some(TicketUse::Failed), _) => false,
            (Some(TicketUse::Persisting | TicketUse::Done), _) => true,
        };
        if again {
            self.violation("6", format!("n{id} uses snapshot {ticket:?} again: {before:?}, then {used:?}"));
        }
    }

    fn commit_observed(&mut self, id: u64, complete: &CompleteCheckpoint) {
        let CompleteCheckpoint { step, attempt, tables, .. } = complete;
        if !self.view(id).committing.insert(*step) {
            self.violation("6", format!("n{id} commits step {step} while it is being committed"));
        }
        let world = self.observer.attempts.get(attempt).copied();
        if world != u32::try_from(tables.len()).ok() {
            let count = tables.len();
            self.violation(
                "6",
                format!("n{id} commits step {step} of {count} shards, expected {world:?} of attempt {attempt}"),
            );
        }
        let named = tables.iter().zip(0u32..).all(|pair| pair.0.file == name::shard(pair.1));
        if !named {
            self.violation("6", format!("n{id} commits step {step} with shards of other ranks: {tables:?}"));
        }
        self.check_shards(id, complete);
        if let Some(owed) = self.view(id).owed.iter().find(|owed| **owed <= *step).copied() {
            self.violation(
                "13",
                format!("n{id} commits step {step} before the journal has the epoch that ended at step {owed}"),
            );
        }
    }

    fn check_shards(&mut self, id: u64, complete: &CompleteCheckpoint) {
        let there = self.disk.shards(&complete.attempt, complete.step);
        let all = there.len() == complete.tables.len();
        if !all && self.disk.lock == Some(id) {
            let step = complete.step;
            let expected = complete.tables.len();
            self.violation(
                "6",
                format!("n{id} commits step {step}, of which {there:?} of {expected} shards are on disk"),
            );
        }
    }

    /// The thread commits: the shards must still be there.
    pub(super) fn check_commit(&mut self, complete: &CompleteCheckpoint) {
        if let Some(id) = self.disk.lock {
            self.check_shards(id, complete);
        }
    }

    fn answer_observed(&mut self, id: u64, request: RequestId, answer: &Answer) {
        let Some(SeenRequest { request, at }) = self.view(id).requests.remove(&request) else {
            return self.violation("11", format!("n{id} answers {request:?} twice, or before it was asked"));
        };
        let Answer::Accepted { says } = answer else { return };
        // The answer may tell that not all nodes know: the wait is over, or the run is.
        let tells = says.contains("have not said that they know");
        match &request {
            Request::Stop {} | Request::Drain { node: None } => self.stop_answered(id, at, tells),
            Request::Drain { node: Some(host) } => {
                let now = self.now;
                if self.observer.rounds > 0 && self.plan.several_nodes() && self.view(id).stayed_at != Some(now) {
                    let host = host.clone();
                    self.view(id).leaving.insert(host);
                }
            }
            Request::Resize { .. } | Request::Pause {} | Request::Continue {} | Request::Cut { .. } => {}
        }
    }

    /// A stop was accepted: the other nodes know it, or did not say so in time.
    fn stop_answered(&mut self, id: u64, at: Time, tells: bool) {
        let now = self.now;
        self.stop_learned(id);
        let begun = self.observer.rounds > 0;
        let view = self.view(id);
        view.stop_at = view.stop_at.min(Some(at));
        view.stop_answered = true;
        let others: Vec<NodeId> = view.inventoried.iter().copied().filter(|node| node.0 != id).collect();
        let knows = |node: &NodeId| view.stop_sent.get(node).is_some_and(|sent| view.acked.get(node) >= Some(sent));
        let all = others.iter().all(knows);
        let waited = now.saturating_sub(at) >= ACK_WAIT_MAX;
        if begun && !others.is_empty() && !all && !waited && !tells {
            self.violation("10", format!("n{id} answers a stop that other nodes do not know yet"));
        }
        if begun && all {
            self.observer.stop_is_safe = true;
        }
    }

    fn journal_observed(&mut self, id: u64, event: &EventKind) {
        let self_now = self.now;
        if let EventKind::RoundFailed { restarting: false, .. } = event {
            self.view(id).giving_up_at.get_or_insert(self_now);
        }
        match event {
            EventKind::RoundStarted { round, world_size, .. } => {
                if self.view(id).started {
                    self.violation("13", format!("n{id} writes twice that round {round} started"));
                }
                self.round_started(id, round.0, *world_size);
            }
            EventKind::RoundFailed { round, cause, .. } | EventKind::RoundLeft { round, reason: cause } => {
                self.round_end_written(id, round.0, cause);
            }
            EventKind::WorkerStarted { pid, .. } | EventKind::SpareStarted { pid, .. }
                if !self.observer.journal_started.insert((id, *pid)) && *pid > 0 =>
            {
                self.violation("13", format!("the start of process {pid} is written twice"));
            }
            EventKind::WorkerExited { pid, .. }
            | EventKind::SpareEnded { pid, .. }
            | EventKind::WorkerDismissed { pid, .. }
                if !self.observer.journal_ended.insert((id, *pid)) && *pid > 0 =>
            {
                self.violation("13", format!("the end of process {pid} is written twice"));
            }
            // A worker of a node that was lost and came back: nothing had ended.
            EventKind::SeatTaken { pid, .. } => _ = self.observer.journal_ended.remove(&(id, *pid)),
            EventKind::GaveUp { .. } => _ = self.view(id).giving_up_at.get_or_insert(self_now),
            EventKind::EpochEnded(report) => _ = self.view(id).owed.remove(&report.step),
            EventKind::SpareReady { .. } | EventKind::NodeJoined { .. } => self.observer.joins += 1,
            EventKind::HangDetected { stacks, .. } => self.observer.stacks += u64::from(stacks.is_some()),
            EventKind::WorkerReady { round, rank, .. } => self.check_ready(id, round.0, rank.0),
            EventKind::Warned { message } if message.contains("is not drained") => {
                let view = self.view(id);
                view.leaving.clear();
                view.stayed_at = Some(self_now);
            }
            EventKind::NodeLost { host, .. } => _ = self.view(id).leaving.remove(host),
            EventKind::DeviceSick { local_rank, left_out: true, host, .. } => {
                self.left_out_observed(id, local_rank.0, host);
            }
            _ => {}
        }
    }

    /// A worker that is written to be ready is.
    fn check_ready(&mut self, id: u64, round: u64, rank: u32) {
        let view = &self.observer.views[&id];
        let worker = view.seats.iter().find(|seat| seat.1.1.rank == rank).map(|seat| *seat.0);
        let process = worker.and_then(|worker| self.processes.values().find(|process| process.worker == worker));
        let ready = process.and_then(|process| process.ready_in);
        if ready != Some(round) {
            self.violation(
                "second list",
                format!("n{id} writes that rank {rank} is ready in round {round}, which it was in {ready:?}"),
            );
        }
    }

    fn round_end_written(&mut self, id: u64, round: u64, cause: &str) {
        let view = self.view(id);
        let twice = !view.ended_rounds.insert(round);
        view.started = false;
        if twice {
            self.violation("13", format!("n{id} writes twice that round {round} ended: {cause}"));
        }
        let blamed = cause.strip_prefix("rank ").and_then(|rest| rest.split_once(' '));
        let Some((rank, what)) = blamed else { return };
        if !what.starts_with("was killed by") {
            return;
        }
        let Ok(rank) = rank.parse::<u32>() else { return };
        let view = &self.observer.views[&id];
        let worker = view.seats.iter().find(|seat| seat.1.1.rank == rank).map(|seat| *seat.0);
        let process = worker.and_then(|worker| self.processes.values().find(|process| process.worker == worker));
        if process.is_some_and(|process| process.ended_by == Some(EndedBy::Agent)) {
            self.violation("second list", format!("n{id} blames a worker that it ended itself: {cause}"));
        }
    }

    fn finish_observed(&mut self, id: u64, outcome: &RunOutcome) {
        let open = self.view(id).requests.len();
        if open > 0 {
            self.violation("11", format!("n{id} finishes and has not answered {open} requests"));
        }
        let now = self.now;
        let left: Vec<Pid> =
            self.processes.values().filter(|one| one.alive && one.agent == id).map(|one| one.pid).collect();
        for pid in left {
            let frozen = self.processes[&pid].unkillable_until.is_some_and(|until| until > now);
            let named = outcome.unkillable.iter().any(|known| known.1 == pid);
            // The leader of programs need not know those of rounds before.
            if !frozen || (!named && !self.plan.programs) {
                self.violation("liveness", format!("process {pid} lives after n{id} finished: {outcome:?}"));
            }
        }
        self.check_saved(id, outcome);
    }

    /// What the last state of training came to.
    fn check_saved(&mut self, id: u64, outcome: &RunOutcome) {
        use crate::supervisor::effect::RunEnd;
        if self.plan.programs || outcome.unsaved.is_some() || self.view(id).fenced || self.disk.lock != Some(id) {
            return;
        }
        if self.are_scripts() && outcome.end != RunEnd::Finished {
            return;
        }
        let saved = self.disk.furthest;
        let view = &self.observer.views[&id];
        let wanted = match outcome.end {
            RunEnd::Finished => Some(self.plan.steps),
            RunEnd::Stopped(_) if !view.second && view.stop_at.is_some_and(|at| self.observer.last_fault_at <= at) => {
                view.stop_state
            }
            RunEnd::Stopped(_) | RunEnd::Failed { .. } | RunEnd::HandedOff | RunEnd::CheckpointsUnusable { .. } => None,
        };
        if wanted > saved.max(Some(0)) {
            let end = &outcome.end;
            self.violation(
                "liveness",
                format!("n{id} ends as {end:?}: step {wanted:?} was held, {saved:?} is saved, and no reason is given"),
            );
        }
    }

    pub(super) fn run_finished(&mut self, id: u64, outcome: &RunOutcome) {
        self.trace(|| format!("n{id} finished: {outcome:?}"));
        self.observer.finished = Some(outcome.clone());
    }

    /// A node is done: none of its workers lives.
    pub(super) fn node_over(&mut self, id: u64, end: &NodeEnd) {
        let now = self.now;
        self.observer.node_ends.insert(id, end.clone());
        let alive = |process: &&Process| {
            process.agent == id && process.alive && process.unkillable_until.is_none_or(|until| until <= now)
        };
        if let Some(pid) = self.processes.values().find(alive).map(|process| process.pid) {
            self.violation("15", format!("process {pid} lives after n{id} ended: {end:?}"));
        }
    }

    pub(super) fn agent_gone(&mut self, id: u64, closes: bool) {
        if !closes {
            self.observer.lost_silently.insert(id);
        }
        let led_to_end =
            |agent: &super::agents::Agent| agent.leader.as_ref().is_some_and(|leader| leader.outcome.is_some());
        let ended = self.agents.get(&id).is_some_and(|agent| agent.end.is_some() || led_to_end(agent));
        if !ended {
            self.fault_felt();
        }
    }

    /// Something outside of the machines went wrong now.
    pub(super) fn fault_felt(&mut self) {
        self.observer.last_fault_at = self.now;
    }

    pub(super) fn round_formed(&mut self, key: &GroupKey, step: u64, kept: bool) {
        self.trace(|| format!("round {} forms at step {step}, kept: {kept}", key.round));
    }

    pub(super) fn step_done(&mut self, key: &GroupKey, step: u64) {
        self.observer.steps += 1;
        self.observer.steps_in_round += 1;
        self.observer.last_step_at = self.now;
        self.trace(|| format!("round {} did step {step}", key.round));
    }

    pub(super) fn state_lost(&mut self, pid: Pid) {
        if self.processes.get(&pid).is_some_and(|process| process.ended_by == Some(EndedBy::Fault)) {
            self.fault_felt();
        }
    }
}
