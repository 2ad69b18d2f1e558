//! What a node agent decides: a pure machine. It obeys the leader and has few rules of its own.
//!
//! **Its own rules:** a lost leader ends the round at once, and the node waits for the next one; a node that is fenced, out of the
//! membership or asked to stop twice kills its workers; SIGTERM is followed by SIGKILL, and a process that survives that is reported and
//! not waited for; commands of another leader are void; a node that was asked to stop leaves when nobody leads for long.

use super::{
    device_failures::DeviceFailures,
    effect::{NodeEffect, NodeEnd},
    input::NodeInput,
    kept_snapshots::KeptSnapshots,
    page_watch::PageWatch,
    program_group::ProgramGroup,
    report::EffectList,
    settings::NodeSettings,
    worker_records::{StartOrder, WorkerRecords},
};
use crate::{rendezvous::NodeId, supervisor::MembershipEnd};
use enn_broker::BrokerEvent;
use enn_common::{
    event::EventKind,
    id::WorkerId,
    wire::{
        message::{Assignment, FromWorker},
        node_agent::{Epoch, Inventory, NodeCommand, NodeEvent, RunEnding, RunFacts, RunSnapshot, StopSignal},
    },
};
use std::{collections::BTreeMap, time::Duration};

/// Longest wait of a node that was asked to stop for another one to lead.
const LEADERLESS_STOP_MAX: Duration = Duration::from_secs(20);

/// Leader that can be reached.
#[derive(Debug, Clone, Copy)]
pub(super) struct LeaderLink {
    /// Epoch in which it was found first.
    pub(super) since: Epoch,
    /// Newest epoch of its memberships.
    epoch: Epoch,
}

/// What the node knows of the run.
#[derive(Debug)]
pub(super) enum RunKnowledge {
    Unknown,
    /// `LookAtRun` is not answered yet.
    Looking(RunFacts),
    Seen(RunFacts),
}

#[derive(Debug)]
pub struct NodeState {
    settings: NodeSettings,
    /// The workers, where they are any programs.
    pub(super) group: Option<ProgramGroup>,
    pub(super) leader: Option<LeaderLink>,
    /// The supervisor of the run is in this process.
    pub(super) is_leading: bool,
    /// The present membership; `None` while the nodes have to agree.
    membership: Option<Epoch>,
    pub(super) run: RunKnowledge,
    /// Newest snapshot of the run, with the stop that this node knows of.
    pub(super) snapshot: Option<RunSnapshot>,
    /// Round that the workers were seated in and were not told to leave.
    round: Option<u64>,
    /// First signal that asked this node to stop.
    stop: Option<StopSignal>,
    /// Nobody leads, and this node, which is to stop, leaves then.
    leave_at: Option<Duration>,
    end: Option<NodeEnd>,
    pub(super) is_over: bool,
    pub(super) workers: WorkerRecords,
    devices: DeviceFailures,
    snapshots: KeptSnapshots,
    pub(super) pages: PageWatch,
}

impl NodeState {
    /// Makes the state of a node that has no workers and has not found a leader.
    pub fn new(settings: NodeSettings, now: Duration) -> Self {
        let pages = PageWatch::new(settings.pages_period, now);
        let group = settings.programs.clone().map(|programs| ProgramGroup::new(programs, settings.host.clone()));
        Self {
            workers: if group.is_some() { WorkerRecords::without_broker() } else { WorkerRecords::default() },
            group,
            is_leading: settings.leads,
            settings,
            leader: None,
            membership: None,
            run: RunKnowledge::Unknown,
            snapshot: None,
            round: None,
            stop: None,
            leave_at: None,
            end: None,
            is_over: false,
            devices: DeviceFailures::default(),
            snapshots: KeptSnapshots::default(),
            pages,
        }
    }

    /// Handles an input, then does what is due by `now`.
    pub fn on(&mut self, now: Duration, input: NodeInput, effects: &mut Vec<NodeEffect>) {
        if self.is_over {
            // What there is to say of the last workers is still said.
            if let NodeInput::Notice(event) = input {
                effects.push(NodeEffect::Journal(event));
            }
            return;
        }
        let list = &mut EffectList::new(now, effects, self.leader.is_some() || self.is_leading);
        self.handle(input, list);
        if let Some(group) = &mut self.group {
            group.due(&mut self.workers, list);
        }
        self.workers.due(list);
        if self.reports_pages() {
            self.pages.due(self.has_pages(), list);
        }
        if self.leave_at.is_some_and(|at| at <= now) {
            self.leave_at = None;
            let signal = self.wanted_stop().unwrap_or(StopSignal::Terminate);
            self.leave(signal, list);
        }
        self.finish(list);
    }

    /// Returns the time of the next `Tick`.
    pub fn deadline(&self) -> Option<Duration> {
        if self.is_over {
            return None;
        }
        let pages = self.reports_pages().then(|| self.pages.deadline(self.has_pages()));
        let group = self.group.as_ref().and_then(ProgramGroup::deadline);
        [self.workers.deadline(), pages, self.leave_at, group].into_iter().flatten().min()
    }

    /// Returns whether the leader hears of progress, or that this node lives. A leader need not hear that of its own programs.
    fn reports_pages(&self) -> bool {
        let is_silent = self.is_leading && self.group.as_ref().is_some_and(|group| !group.watches_progress());
        self.leader.is_some() && !is_silent
    }

    /// Returns whether workers live whose progress is looked at.
    pub(super) fn has_pages(&self) -> bool {
        self.workers.has_pages() && self.group.as_ref().is_none_or(ProgramGroup::watches_progress)
    }

    /// Returns the newest epoch of the leader that can be reached; `None` while nobody leads.
    pub fn epoch(&self) -> Option<Epoch> {
        self.leader.map(|leader| leader.epoch)
    }

    fn handle(&mut self, input: NodeInput, list: &mut EffectList<'_>) {
        if self.group.is_some() {
            return self.on_program_input(input, list);
        }
        match input {
            NodeInput::Tick => {}
            NodeInput::LeaderFound { epoch } => self.leader_found(epoch, list),
            NodeInput::BecameLeader { epoch, .. } if self.is_leading => self.leader_found(epoch, list),
            NodeInput::BecameLeader { epoch, members } => self.become_leader(epoch, members, list),
            NodeInput::MembershipReopened => {
                self.membership = None;
                if !self.is_leading && self.end.is_none() {
                    list.push(NodeEffect::RejoinMembership);
                }
            }
            NodeInput::LeaderLost { reason } => self.leader_lost(&reason, list),
            NodeInput::MembershipOver(end) => self.membership_over(end, list),
            NodeInput::Waiting { reason } => self.journal(EventKind::Waiting { reason }, list),
            NodeInput::Command { epoch, command } => {
                // Commands of a leader that is gone are void.
                if self.leader.is_some_and(|leader| epoch.is_of_leader(leader.since)) {
                    self.on_command(command, list);
                }
            }
            NodeInput::RunSeen(result) => self.run_seen(result, list),
            NodeInput::Spawned { worker, pid, forked } => self.workers.on_spawned(worker, pid, forked, list),
            NodeInput::SpawnFailed { worker, error } => self.workers.on_spawn_failed(worker, error, list),
            NodeInput::Exited { worker, exit } => {
                self.pages.forget(worker);
                self.workers.on_exited(worker, exit, list);
            }
            NodeInput::Evidence { worker, evidence, gpu } => {
                self.devices.on_evidence(self.workers.failed(worker), &evidence, gpu, list);
                self.workers.settle(worker, evidence, list);
            }
            NodeInput::Broker(event) => self.on_broker(event, list),
            NodeInput::Pages(mut pages) => {
                pages.retain(|page| self.workers.is_alive(page.worker));
                self.pages.on_pages(pages, list);
            }
            NodeInput::Signal(signal) => self.on_signal(signal, list),
            NodeInput::SnapshotWritten { worker, ticket, result } => {
                self.snapshots.on_written(worker, ticket, result, list);
            }
            NodeInput::StacksCollected { round, dir, summary } => {
                list.report(NodeEvent::Stacks { round, dir, summary });
            }
            NodeInput::Fault { reason } => self.fault(reason, list),
            NodeInput::Notice(event) => list.push(NodeEffect::Journal(event)),
            // Of programs only.
            NodeInput::RoundPlanned(_)
            | NodeInput::RoundEnded(_)
            | NodeInput::GroupOver(_)
            | NodeInput::ProgramSpawned { .. }
            | NodeInput::ProgramNotStarted { .. }
            | NodeInput::CauseFound(_)
            | NodeInput::ProgramSignal(_)
            | NodeInput::ForkServer { .. } => {}
        }
    }

    /// A leader is there, in a new membership of this node.
    pub(super) fn leader_found(&mut self, epoch: Epoch, list: &mut EffectList<'_>) {
        let known = self.leader.filter(|leader| epoch.is_of_leader(leader.since));
        let since = known.map_or(epoch, |leader| leader.since);
        self.leader = Some(LeaderLink { since, epoch });
        self.membership = Some(epoch);
        self.leave_at = None;
        list.has_leader = true;
        self.pages.begin(list.now);
        if let Some(end) = &self.end {
            let reason = if let NodeEnd::Failed(reason) = end { reason } else { "its node is about to end" };
            return list.report(NodeEvent::Unfit { reason: reason.to_owned() });
        }
        list.report(NodeEvent::Inventory(Box::new(Inventory {
            epoch,
            host: self.settings.host.clone(),
            workers: self.settings.workers,
            workers_max: self.settings.workers_max,
            living: self.workers.living(),
            snapshot: self.snapshot.clone().map(Box::new),
            stop: self.stop,
        })));
        self.workers.report_unkillable(list);
        self.devices.report(list);
    }

    /// The leader is gone, and the others have this node lead.
    pub(super) fn become_leader(&mut self, epoch: Epoch, members: Vec<NodeId>, list: &mut EffectList<'_>) {
        match (&self.snapshot, &self.run) {
            (Some(snapshot), RunKnowledge::Seen(facts)) if self.end.is_none() => {
                let snapshot = Box::new(snapshot.clone());
                let facts = facts.clone();
                list.push(NodeEffect::Lead { epoch, members, snapshot, facts });
                self.is_leading = true;
                self.leader = None;
                self.leader_found(epoch, list);
            }
            (Some(_) | None, RunKnowledge::Unknown | RunKnowledge::Looking(_) | RunKnowledge::Seen(_)) => {
                let reason = "the leader of the run is gone, and this node had not heard what the run is";
                self.fail(reason.to_owned(), list);
            }
        }
    }

    fn leader_lost(&mut self, reason: &str, list: &mut EffectList<'_>) {
        if self.is_leading {
            return;
        }
        self.leader = None;
        list.has_leader = false;
        self.workers.kill_unborn(list);
        self.snapshots.abandon(list);
        // A leader that was drained left behind the last worker that left the round.
        if self.snapshot.as_ref().is_none_or(|snapshot| snapshot.drained.is_none()) {
            if self.end.is_none() {
                let message = format!("the leader of the run is out of reach: {reason}");
                self.journal(EventKind::Warned { message }, list);
            }
            self.end_round(format!("the leader of the run is gone: {reason}"), list);
        }
        self.await_leader(list.now);
    }

    fn membership_over(&mut self, end: MembershipEnd, list: &mut EffectList<'_>) {
        if self.is_leading {
            // The supervisor ends the run, unless the other side may go on in the same directory.
            if let MembershipEnd::Failed { fenced: true, .. } = end {
                self.workers.kill_all(list);
            }
            return;
        }
        self.leader = None;
        self.membership = None;
        self.leave_at = None;
        list.has_leader = false;
        self.snapshots.abandon(list);
        let end = match end {
            // The leader says more to its nodes; this one only waited for a place.
            MembershipEnd::Finished => NodeEnd::Ended(RunEnding::Finished),
            MembershipEnd::Stopped { by } => {
                let named = StopSignal::named(by.split(' ').next().unwrap_or_default());
                NodeEnd::Stopped(self.stop.unwrap_or(named))
            }
            MembershipEnd::Failed { reason, fenced: _ } => {
                if self.end.is_none() {
                    self.journal(EventKind::GaveUp { reason: reason.clone() }, list);
                }
                NodeEnd::Failed(reason)
            }
        };
        self.end.get_or_insert(end);
        self.workers.kill_all(list);
    }

    fn on_command(&mut self, command: NodeCommand, list: &mut EffectList<'_>) {
        match command {
            NodeCommand::JoinRun(facts) => self.join_run(*facts, list),
            NodeCommand::Start { worker, .. } if self.end.is_some() => {
                list.report(NodeEvent::StartFailed { worker, error: "its node is about to end".into() });
            }
            NodeCommand::Start { worker, seat, standby, logs } => {
                let run_seen = matches!(self.run, RunKnowledge::Seen(_));
                self.workers.start(worker, StartOrder { seat, standby, logs }, run_seen, list);
            }
            NodeCommand::BeginRound { round, seats, snapshot } => self.begin_round(round, seats, *snapshot, list),
            NodeCommand::EndRound { round, reason } => {
                if self.round == Some(round) {
                    self.end_round(reason, list);
                }
            }
            NodeCommand::SetFlag { workers, flag, on } => {
                for worker in workers.into_iter().filter(|worker| self.workers.is_alive(*worker)) {
                    list.push(NodeEffect::SetFlag { worker, flag, on });
                }
            }
            NodeCommand::Broadcast(message) => list.push(NodeEffect::Broadcast(message)),
            NodeCommand::Dismiss { worker, kill_after } => {
                if self.workers.is_alive(worker) {
                    list.push(NodeEffect::Disconnect { worker });
                }
                self.workers.terminate(worker, kill_after, list);
            }
            NodeCommand::Stop { workers, kill_after } => {
                for worker in workers {
                    self.workers.terminate(worker, kill_after, list);
                }
            }
            NodeCommand::DisconnectAll => list.push(NodeEffect::DisconnectAll),
            NodeCommand::LinkLogs { worker, logs } => {
                if self.workers.is_alive(worker) {
                    list.push(NodeEffect::LinkLogs { worker, logs });
                }
            }
            NodeCommand::PersistSnapshot { worker, ticket, dir, rank } => {
                self.snapshots.persist(worker, ticket, dir, rank, list);
            }
            NodeCommand::ReleaseSnapshot { worker, ticket } => self.snapshots.release(worker, ticket, list),
            NodeCommand::CollectStacks { round, limit } => {
                let workers = self.workers.seated_in(round);
                list.push(NodeEffect::CollectStacks { round, workers, limit });
            }
            NodeCommand::ReplicateSnapshot(snapshot) => {
                let requests = snapshot.requests;
                self.learn(*snapshot);
                list.report(NodeEvent::SnapshotAcked { requests });
            }
            NodeCommand::LeaveRun { why } => {
                list.push(NodeEffect::LeaveMembership { why });
                self.end.get_or_insert(NodeEnd::Drained);
                self.workers.kill_all(list);
            }
            NodeCommand::EndRun(ending) => {
                self.end = Some(NodeEnd::Ended(ending));
                self.workers.kill_all(list);
            }
            NodeCommand::CutLink { time } => list.push(NodeEffect::CutLink { time }),
            // For programs.
            NodeCommand::BeginGroup { .. } => {}
        }
    }

    /// The leader says which run this is. The first leader made its directory.
    fn join_run(&mut self, facts: RunFacts, list: &mut EffectList<'_>) {
        match &self.run {
            RunKnowledge::Looking(known) | RunKnowledge::Seen(known) if *known == facts => {}
            RunKnowledge::Unknown | RunKnowledge::Looking(_) | RunKnowledge::Seen(_) if self.is_leading => {
                self.run = RunKnowledge::Seen(facts);
                self.workers.spawn_ordered(list);
            }
            RunKnowledge::Unknown | RunKnowledge::Looking(_) | RunKnowledge::Seen(_) => {
                list.push(NodeEffect::LookAtRun(facts.clone()));
                self.run = RunKnowledge::Looking(facts);
            }
        }
    }

    fn run_seen(&mut self, result: Result<(), String>, list: &mut EffectList<'_>) {
        let RunKnowledge::Looking(facts) = &self.run else { return };
        match result {
            Ok(()) => {
                self.run = RunKnowledge::Seen(facts.clone());
                self.workers.spawn_ordered(list);
            }
            Err(found) => {
                let host = &self.settings.host;
                let dir = facts.run_dir.display();
                let reason = format!(
                    "node {host} does not see the run directory {dir} as the leader of the run does: {found} (the run and \
                     its staged data must be on a file system that all nodes share: --runs-dir, or for runs at an address \
                     XDG_CACHE_HOME)"
                );
                self.run = RunKnowledge::Unknown;
                self.fail(reason, list);
            }
        }
    }

    fn begin_round(
        &mut self,
        round: u64,
        seats: BTreeMap<WorkerId, Assignment>,
        snapshot: RunSnapshot,
        list: &mut EffectList<'_>,
    ) {
        self.round = Some(round);
        self.workers.seat(round, &seats);
        self.learn(snapshot);
        list.push(NodeEffect::Seat { round, seats });
    }

    /// The workers leave the round at once, if they have not been told to.
    fn end_round(&mut self, reason: String, list: &mut EffectList<'_>) {
        if self.round.take().is_some() {
            list.push(NodeEffect::EndRound { reason });
        }
    }

    /// Keeps the snapshot if it is the newest. The request to stop is never taken back.
    pub(super) fn learn(&mut self, snapshot: RunSnapshot) {
        let known = self.snapshot.take();
        let stop = snapshot.stop.or(known.as_ref().and_then(|known| known.stop)).or(self.stop);
        let newest = match known {
            Some(known) if known.is_newer_than(&snapshot) => known,
            Some(_) | None => snapshot,
        };
        self.snapshot = Some(RunSnapshot { stop, ..newest });
    }

    fn on_broker(&mut self, event: BrokerEvent, list: &mut EffectList<'_>) {
        match event {
            BrokerEvent::Joined { worker, .. }
            | BrokerEvent::Left { worker, .. }
            | BrokerEvent::Reported { worker, .. }
                if !self.workers.contains(worker) => {}
            BrokerEvent::Joined { worker, .. } => {
                self.workers.set_connected(worker, true);
                list.report(NodeEvent::Connected { worker });
            }
            BrokerEvent::Reported { round, worker, message } => {
                self.workers.note(worker, &message);
                if let FromWorker::ShardStaged(shard) = &message {
                    self.snapshots.keep(worker, shard, list);
                }
                let round = round.map(|round| round.0);
                list.report(NodeEvent::WorkerMessage { worker, round, message: Box::new(message) });
            }
            BrokerEvent::Left { worker, error } => {
                self.workers.set_connected(worker, false);
                list.report(NodeEvent::Disconnected { worker, error });
            }
            // The shell has noted it on the control page.
            BrokerEvent::Progressed { .. } => {}
            BrokerEvent::Refused { error } => list.report(NodeEvent::Refused { reason: error }),
            BrokerEvent::Synced { token } => {
                if let Ok(worker) = u32::try_from(token) {
                    self.workers.on_messages_read(WorkerId(worker), list);
                }
            }
            BrokerEvent::Broke { error } => {
                self.workers.on_broker_broke(list);
                self.fault(format!("the broker broke: {error}"), list);
            }
        }
    }

    /// Something of this node broke. Where it leads, the supervisor ends the run.
    fn fault(&mut self, reason: String, list: &mut EffectList<'_>) {
        list.report(NodeEvent::Fault { reason: reason.clone() });
        if !self.is_leading {
            self.give_up(reason, list);
        }
    }

    /// This node cannot take part.
    fn fail(&mut self, reason: String, list: &mut EffectList<'_>) {
        list.report(NodeEvent::Unfit { reason: reason.clone() });
        self.give_up(reason, list);
    }

    fn give_up(&mut self, reason: String, list: &mut EffectList<'_>) {
        self.journal(EventKind::GaveUp { reason: reason.clone() }, list);
        self.end.get_or_insert(NodeEnd::Failed(reason));
        self.workers.kill_all(list);
    }

    fn on_signal(&mut self, signal: StopSignal, list: &mut EffectList<'_>) {
        let second = StopSignal::is_second(self.stop);
        self.journal(EventKind::StopRequested { signal: signal.name().into(), second }, list);
        let first = *self.stop.get_or_insert(signal);
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.stop.get_or_insert(first);
        }
        let takes_part = self.leader.is_some() && !matches!(self.run, RunKnowledge::Unknown);
        if self.is_leading || takes_part {
            list.report(NodeEvent::Signal { signal, second });
        } else if second || self.snapshot.is_none() {
            self.leave(first, list);
        }
        self.await_leader(list.now);
        if second {
            self.workers.kill_all(list);
        }
    }

    /// Nobody leads. The next leader has the workers save when the run is to stop; that is not waited for without end.
    fn await_leader(&mut self, now: Duration) {
        if self.leader.is_none() && !self.is_leading && self.wanted_stop().is_some() {
            self.leave_at.get_or_insert(now + LEADERLESS_STOP_MAX);
        }
    }

    /// Returns the signal by which the run is to stop, as far as this node knows.
    fn wanted_stop(&self) -> Option<StopSignal> {
        self.snapshot.as_ref().and_then(|snapshot| snapshot.stop)
    }

    /// Leaves the run, as after this signal.
    fn leave(&mut self, signal: StopSignal, list: &mut EffectList<'_>) {
        list.push(NodeEffect::LeaveMembership { why: signal.name().to_owned() });
        self.end.get_or_insert(NodeEnd::Stopped(signal));
        self.workers.kill_all(list);
    }

    /// Writes an event for the people at this node. Where it leads, the supervisor writes what they see.
    fn journal(&self, event: EventKind, list: &mut EffectList<'_>) {
        if !self.is_leading {
            list.push(NodeEffect::Journal(event));
        }
    }

    /// Ends the node when no worker is left.
    fn finish(&mut self, list: &mut EffectList<'_>) {
        if let Some(group) = &mut self.group {
            let end = group.settle(&self.workers, list);
            self.is_over = end.is_some();
            return list.extend(end.map(NodeEffect::End));
        }
        let Some(end) = self.end.take_if(|_| self.workers.are_gone()) else { return };
        if let (Some(epoch), NodeEnd::Ended(_), false) = (self.membership, &end, self.is_leading) {
            list.push(NodeEffect::FinishMembership { epoch });
        }
        self.snapshots.abandon(list);
        list.push(NodeEffect::End(end));
        self.is_over = true;
    }
}

#[cfg(test)]
impl NodeState {
    /// Returns whether this node leads.
    pub fn is_leading(&self) -> bool {
        self.is_leading
    }

    /// Returns the newest snapshot of the run, with the stop that this node knows of.
    pub fn snapshot(&self) -> Option<&RunSnapshot> {
        self.snapshot.as_ref()
    }

    /// Returns the round that the node's workers were seated in and were not told to leave.
    pub fn round(&self) -> Option<u64> {
        self.round
    }

    /// Returns the workers whose processes live, as an inventory lists them.
    pub fn living(&self) -> Vec<enn_common::wire::node_agent::LivingWorker> {
        self.workers.living()
    }

    /// Returns the snapshots in memory that are neither written nor released.
    pub fn kept_snapshots(&self) -> Vec<(WorkerId, u64)> {
        self.snapshots.unfinished()
    }

    /// Returns whether the node is to end as soon as its workers have.
    pub fn is_ending(&self) -> bool {
        self.end.is_some()
    }

    /// Returns whether `End` was the last effect.
    pub fn is_over(&self) -> bool {
        self.is_over
    }
}
