//! Node agents: the real node state on a simulated machine, with its membership, its broker and its part in leading.

use super::{
    broker::Broker,
    leader_services::Leader,
    links::{Frame, Machine},
    processes::{Pid, Process},
    programs,
    world::{Event, Time, World},
};
use crate::{
    node_agent::{
        effect::{EndSignal, NodeEffect, NodeEnd},
        input::NodeInput,
        settings::NodeSettings,
        state::NodeState,
    },
    rendezvous::{
        NodeId, Notification, RunEnd,
        simulated::{Action, LinkId, Membership, Packet},
    },
    supervisor::{MembershipEnd, input::Input},
    transport,
};
use enn_broker::RoundPlan;
use enn_common::{
    id::{Round, WorkerId},
    wire::{
        message::StagedShard,
        node_agent::{Epoch, NodeCommand, SeatFacts, WriteFailure},
    },
};
use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

/// One agent process. None lives twice: a node that returns has another number.
pub(super) struct Agent {
    pub(super) id: u64,
    pub(super) machine: Machine,
    pub(super) host: String,
    pub(super) node: NodeState,
    pub(super) membership: Membership,
    pub(super) broker: Broker,
    pub(super) leader: Option<Box<Leader>>,
    /// Processes that were started and not reaped.
    pub(super) workers: BTreeMap<WorkerId, Pid>,
    /// Snapshots in memory that the node keeps.
    pub(super) kept: BTreeMap<(WorkerId, u64), StagedShard>,
    pub(super) end: Option<NodeEnd>,
    /// Epoch in which the link to the present leader began, and the newest one.
    pub(super) link_epoch: Option<Epoch>,
    pub(super) epoch: Option<Epoch>,
    /// Inputs that wait, and whether one is being handled.
    inbox: VecDeque<NodeInput>,
    busy: bool,
    node_wake: Option<Time>,
    membership_wake: Option<Time>,
    /// The run is over for it at this time.
    pub(super) over_at: Option<Time>,
}

/// Membership ends as the node agent and the supervisor know them.
pub(super) fn membership_end(end: RunEnd, elastic: bool) -> MembershipEnd {
    match end {
        RunEnd::Finished => MembershipEnd::Finished,
        RunEnd::Stopped { by } => MembershipEnd::Stopped { by },
        RunEnd::Failed { end, reason } => {
            MembershipEnd::Failed { reason: format!("{end} ({reason})"), fenced: elastic }
        }
        RunEnd::LeaderLost { reason } => MembershipEnd::Failed { reason, fenced: elastic },
        RunEnd::TimedOut { reason } | RunEnd::Refused { reason } => MembershipEnd::Failed { reason, fenced: false },
    }
}

/// Whether a command is not of the leader that was found in the epoch `since`, as the rules have it.
fn is_stale(epoch: Epoch, since: Epoch) -> bool {
    epoch.leader != since.leader || epoch.number < since.number
}

impl World {
    /// An agent starts on a machine that has none.
    pub(super) fn start_agent(&mut self, machine: Machine) {
        self.last_agent += 1;
        let id = self.last_agent;
        let host = format!("n{}", machine.0);
        let leads = machine.0 == 0 && id == 1;
        let settings = NodeSettings {
            host: host.clone(),
            workers: self.plan.workers,
            workers_max: self.plan.workers_max,
            leads,
            pages_period: self.plan.pages_period,
            programs: self.plan.program_settings(),
        };
        let terms = self.plan.membership(&host);
        let own = NodeId(id);
        let membership = match (leads, self.endpoint) {
            (true, _) => {
                self.endpoint = id;
                Membership::lead(own, terms, self.now)
            }
            (false, endpoint) => Membership::discover(own, terms, self.now, endpoint),
        };
        let agent = Agent {
            id,
            machine,
            host: host.clone(),
            node: NodeState::new(settings, self.now),
            membership,
            broker: Broker::default(),
            leader: None,
            workers: BTreeMap::new(),
            kept: BTreeMap::new(),
            end: None,
            link_epoch: None,
            epoch: None,
            inbox: VecDeque::new(),
            busy: false,
            node_wake: None,
            membership_wake: None,
            over_at: None,
        };
        self.agents.insert(id, agent);
        self.machines[machine.0].agent = Some(id);
        self.observer.note_agent(id, machine);
        self.trace(|| format!("agent {id} starts on {host}"));
        if leads {
            self.first_leader(id);
        }
        if !leads || self.plan.meets() {
            let now = self.now;
            self.agents.get_mut(&id).into_iter().for_each(|agent| agent.membership.join(now));
            self.serve_membership(id);
        }
    }

    /// Hands an input to the node state, behind those that wait.
    pub(super) fn feed_node(&mut self, id: u64, input: NodeInput) {
        let Some(agent) = self.agents.get_mut(&id) else { return };
        agent.inbox.push_back(input);
        if std::mem::replace(&mut agent.busy, true) {
            return;
        }
        loop {
            let Some(agent) = self.agents.get_mut(&id) else { return };
            let Some(input) = agent.inbox.pop_front() else { break };
            if agent.end.is_some() {
                continue;
            }
            self.on_node_input(id, input);
        }
        if let Some(agent) = self.agents.get_mut(&id) {
            agent.busy = false;
        }
        self.wake_node_later(id);
    }

    fn on_node_input(&mut self, id: u64, input: NodeInput) {
        let now = self.now;
        let stale = self.stale_command(id, &input);
        if stale.is_none() {
            self.node_input_observed(id, &input);
        }
        if self.traces() && !matches!(input, NodeInput::Pages(_) | NodeInput::Tick) {
            self.trace(|| format!("  n{id} ← {input:?}"));
        }
        if let (NodeInput::Command { command, .. }, None) = (&input, &stale) {
            self.end_ordered(id, command);
        }
        let Some(agent) = self.agents.get_mut(&id) else { return };
        let mut effects = Vec::new();
        agent.node.on(now, input, &mut effects);
        if let (Some(what), false) = (stale, effects.is_empty()) {
            self.violation("fencing", format!("node {id} obeys a command of an older epoch: {what}"));
        }
        for effect in effects {
            if self.traces() && !matches!(effect, NodeEffect::ReadPages) {
                self.trace(|| format!("  n{id} → {effect:?}"));
            }
            self.apply_node(id, effect);
        }
    }

    /// What a leader that this node has given up for another one commands; `None` where its own leader does.
    fn stale_command(&self, id: u64, input: &NodeInput) -> Option<String> {
        let NodeInput::Command { epoch, command } = input else { return None };
        let agent = self.agents.get(&id)?;
        (agent.link_epoch.is_none_or(|since| is_stale(*epoch, since))).then(|| format!("{command:?}"))
    }

    /// Feeds an input when what is under way is done.
    pub(super) fn node_later(&mut self, agent: u64, input: NodeInput) {
        self.at(self.now, Event::Node { agent, input: Box::new(input) });
    }

    fn wake_node_later(&mut self, id: u64) {
        let now = self.now;
        let Some(agent) = self.agents.get_mut(&id).filter(|agent| agent.end.is_none()) else { return };
        let Some(at) = agent.node.deadline().map(|at| at.max(now)) else { return };
        if agent.node_wake.is_none_or(|wake| wake > at) {
            agent.node_wake = Some(at);
            self.at(at, Event::NodeWake { agent: id, at });
        }
    }

    /// The node's deadline may have come.
    pub(super) fn wake_node(&mut self, id: u64, at: Time) {
        let now = self.now;
        let Some(agent) = self.agents.get_mut(&id) else { return };
        if agent.node_wake == Some(at) {
            agent.node_wake = None;
        }
        if agent.node.deadline().is_some_and(|due| due <= now) {
            self.count_tick(id);
            self.feed_node(id, NodeInput::Tick);
        } else {
            self.wake_node_later(id);
        }
    }

    fn apply_node(&mut self, id: u64, effect: NodeEffect) {
        let now = self.now;
        match effect {
            NodeEffect::Report(event) => self.report(id, event),
            NodeEffect::Journal(_) | NodeEffect::LinkLogs { .. } => {}
            NodeEffect::LookAtRun(_) => {
                let delay = self.random.up_to_ms(20);
                self.at(now + delay, Event::Node { agent: id, input: Box::new(NodeInput::RunSeen(Ok(()))) });
            }
            NodeEffect::Admit { worker, standby } => {
                let Some(agent) = self.agents.get_mut(&id) else { return };
                let effects = agent.broker.roster.expect(worker, standby);
                self.apply_roster(id, effects);
            }
            NodeEffect::Spawn { worker, seat, .. } => self.spawn(id, worker, seat),
            NodeEffect::Signal { worker, signal } => self.agent_signalled(id, worker, signal),
            NodeEffect::SetFlag { worker, flag, on } => {
                if let Some(pid) = self.pid_of(id, worker) {
                    self.set_flag(pid, flag, on);
                }
            }
            NodeEffect::Seat { round, seats } => {
                let plan = RoundPlan { round: Round(round), seats };
                self.on_roster(id, |roster| roster.begin(plan));
            }
            NodeEffect::EndRound { reason } => self.on_roster(id, |roster| roster.end(&reason)),
            NodeEffect::Broadcast(message) => self.on_roster(id, |roster| roster.tell_all(&message)),
            NodeEffect::Disconnect { worker } => {
                self.worker_given_up(id, worker);
                self.on_roster(id, |roster| roster.dismiss(worker));
            }
            NodeEffect::DisconnectAll => self.on_roster(id, enn_broker::roster::Roster::close_all),
            NodeEffect::SyncBroker { worker } => self.sync_broker(id, worker),
            NodeEffect::ReadEvidence { worker } => self.read_evidence(id, worker),
            NodeEffect::Forget { worker } => {
                self.agents.get_mut(&id).into_iter().for_each(|agent| _ = agent.workers.remove(&worker));
            }
            NodeEffect::Persist { worker, ticket, dir, rank } => self.persist(id, worker, ticket, dir, rank),
            NodeEffect::Release { worker, ticket } => self.release(id, worker, ticket),
            NodeEffect::Keep { worker, shard } => {
                let Some(agent) = self.agents.get_mut(&id) else { return };
                agent.kept.insert((worker, shard.ticket), *shard);
            }
            NodeEffect::CollectStacks { round, .. } => {
                let summary = vec!["rank 0 waits".to_owned()];
                let input = NodeInput::StacksCollected { round, dir: "/runs/r/stacks".into(), summary };
                let delay = self.random.up_to_ms(500);
                self.at(now + delay, Event::Node { agent: id, input: Box::new(input) });
            }
            NodeEffect::ReadPages => self.read_pages(id),
            NodeEffect::CutLink { time } => self.cut_from_leader(id, time),
            NodeEffect::RejoinMembership => self.on_membership(id, |membership, now| membership.join(now)),
            NodeEffect::LeaveMembership { why } => {
                self.on_membership(id, |membership, now| membership.leave(now, why));
            }
            NodeEffect::FinishMembership { epoch } => {
                self.on_membership(id, |membership, now| membership.finished(now, transport::round_of(epoch)));
            }
            NodeEffect::Lead { epoch, members, snapshot, .. } => self.next_leader(id, epoch, members, *snapshot),
            NodeEffect::End(end) => self.node_ended(id, end),
            NodeEffect::StartPrograms(_) | NodeEffect::FindCause | NodeEffect::ClearGroup { .. } => {
                self.apply_programs(id, effect);
            }
        }
    }

    pub(super) fn on_roster(
        &mut self,
        id: u64,
        change: impl FnOnce(&mut enn_broker::roster::Roster) -> Vec<enn_broker::roster::Effect>,
    ) {
        let Some(agent) = self.agents.get_mut(&id) else { return };
        let effects = change(&mut agent.broker.roster);
        self.apply_roster(id, effects);
    }

    pub(super) fn on_membership(&mut self, id: u64, change: impl FnOnce(&mut Membership, Time)) {
        let now = self.now;
        if let Some(agent) = self.agents.get_mut(&id) {
            change(&mut agent.membership, now);
            self.serve_membership(id);
        }
    }

    pub(super) fn pid_of(&self, id: u64, worker: WorkerId) -> Option<Pid> {
        self.agents.get(&id)?.workers.get(&worker).copied()
    }

    /// An event goes to the leader: by a queue on its own node, else over the connection.
    fn report(&mut self, id: u64, event: enn_common::wire::node_agent::NodeEvent) {
        let Some(agent) = self.agents.get(&id) else { return };
        if agent.leader.is_some() {
            return self.feed_leader(id, Input::Node { node: NodeId(id), event });
        }
        if let Some(link) = agent.membership.leader_link() {
            self.send(id, link, Packet::Event(event));
        }
    }

    fn spawn(&mut self, id: u64, worker: WorkerId, facts: Option<SeatFacts>) {
        let now = self.now;
        let Some(agent) = self.agents.get(&id) else { return };
        let machine = agent.machine;
        let fails = self.machines[machine.0].spawn_fails_until > now;
        let delay = self.random.up_to_ms(3);
        let input = if fails {
            NodeInput::SpawnFailed { worker, error: "too many open files".to_owned() }
        } else {
            self.last_pid += 1;
            let pid = self.last_pid;
            let facts = facts.filter(|_| self.are_scripts());
            let mut process = Process::new(pid, worker, machine, id, now);
            process.facts = facts;
            self.start_process(process);
            self.agents.get_mut(&id).into_iter().for_each(|agent| _ = agent.workers.insert(worker, pid));
            NodeInput::Spawned { worker, pid, forked: false }
        };
        self.at(now + delay, Event::Node { agent: id, input: Box::new(input) });
    }

    fn agent_signalled(&mut self, id: u64, worker: WorkerId, signal: EndSignal) {
        let Some(pid) = self.pid_of(id, worker) else { return };
        self.worker_given_up(id, worker);
        if signal == EndSignal::Kill {
            self.check_kill(id, pid);
        }
        self.agent_signals(pid, signal == EndSignal::Kill);
    }

    fn read_evidence(&mut self, id: u64, worker: WorkerId) {
        let pid = self.pid_of(id, worker);
        let mut evidence = pid.map(|pid| self.evidence(pid)).unwrap_or_default();
        let gpu = pid.and_then(|pid| self.device_evidence(pid, &mut evidence));
        // The log may be on a slow disk.
        let slow = if self.random.one_in(8) { 4000 } else { 30 };
        let delay = self.random.up_to_ms(slow);
        let input = NodeInput::Evidence { worker, evidence, gpu };
        self.at(self.now + delay, Event::Node { agent: id, input: Box::new(input) });
    }

    fn read_pages(&mut self, id: u64) {
        let now = self.now;
        let Some(agent) = self.agents.get(&id) else { return };
        let pages = agent.workers.values().filter_map(|pid| Some(self.processes.get(pid)?.page(now))).collect();
        self.node_later(id, NodeInput::Pages(pages));
    }

    /// The node agent writes a snapshot from memory as a shard.
    fn persist(&mut self, id: u64, worker: WorkerId, ticket: u64, dir: std::path::PathBuf, rank: u32) {
        let at = self.disk_ready_at();
        self.at(at, Event::Persisted { agent: id, worker, ticket, dir, rank });
    }

    /// A snapshot was written, or was not.
    pub(super) fn persisted(&mut self, id: u64, worker: WorkerId, ticket: u64, dir: std::path::PathBuf, rank: u32) {
        if let Some(until) = self.disk.hung_until.filter(|until| *until > self.now) {
            return self.at(until, Event::Persisted { agent: id, worker, ticket, dir, rank });
        }
        let full = self.disk.is_full(self.now);
        let Some(agent) = self.agents.get(&id) else { return };
        let known = agent.kept.contains_key(&(worker, ticket));
        let result = match (known, full) {
            (true, false) => Ok(self.disk.write_shard_in(&dir, rank)),
            (true, true) => Err(WriteFailure { error: "no space left on device".to_owned(), disk_full: true }),
            (false, _) => Err(WriteFailure { error: "no such snapshot".to_owned(), disk_full: false }),
        };
        if result.is_ok() {
            self.give_back(id, worker, ticket);
        }
        self.feed_node(id, NodeInput::SnapshotWritten { worker, ticket, result });
    }

    fn release(&mut self, id: u64, worker: WorkerId, ticket: u64) {
        self.give_back(id, worker, ticket);
    }

    fn give_back(&mut self, id: u64, worker: WorkerId, ticket: u64) {
        let pid = self.processes.values().find(|process| process.agent == id && process.worker == worker);
        let pid = pid.map(|process| process.pid);
        if let Some(agent) = self.agents.get_mut(&id) {
            agent.kept.remove(&(worker, ticket));
        }
        if let Some(process) = pid.and_then(|pid| self.processes.get_mut(&pid)) {
            process.tickets.remove(&ticket);
        }
    }

    fn cut_from_leader(&mut self, id: u64, time: Duration) {
        let Some(agent) = self.agents.get_mut(&id) else { return };
        let machine = agent.machine;
        let Some(link) = agent.membership.leader_link() else { return };
        let other = self.network.get_mut(link).map(|link| link.ends(id).1.machine);
        if let Some(other) = other {
            let until = self.now + time;
            self.network.cut(machine, other, until);
            self.network.cut(other, machine, until);
        }
    }

    fn node_ended(&mut self, id: u64, end: NodeEnd) {
        let now = self.now;
        self.trace(|| format!("node {id} ends: {end:?}"));
        self.node_over(id, &end);
        let Some(agent) = self.agents.get_mut(&id) else { return };
        agent.end = Some(end);
        agent.over_at = Some(now);
        if agent.leader.is_none() || self.plan.programs {
            // The membership hears of it for a moment.
            self.at(now + Duration::from_secs(2), Event::AgentExits(id));
        }
    }

    /// A process was reaped.
    pub(super) fn reaped(&mut self, id: u64, pid: Pid, exit: enn_common::wire::node_agent::WorkerExit) {
        let worker = exit.page.worker;
        if self.pid_of(id, worker) == Some(pid) {
            self.feed_node(id, NodeInput::Exited { worker, exit });
        }
    }

    /// Carries out what a membership asks for.
    pub(super) fn serve_membership(&mut self, id: u64) {
        while let Some(action) = self.agents.get_mut(&id).and_then(|agent| agent.membership.next_action()) {
            if let (true, Some(nodes)) = (self.plan.programs, programs::begun(&action)) {
                self.check_store_cleared(id, nodes);
            }
            match action {
                Action::Notify(notification) => self.notified(id, notification),
                Action::Send(link, packet) => self.send(id, link, packet),
                Action::Close(link) => self.close_link(id, link, Frame::Closed),
                Action::Abandon(link) => self.abandon_link(id, link),
                Action::Connect(target) => self.connect(id, target),
            }
        }
        let now = self.now;
        let Some(agent) = self.agents.get_mut(&id) else { return };
        let Some(at) = agent.membership.deadline().map(|at| at.max(now)) else { return };
        if agent.membership_wake.is_none_or(|wake| wake > at) {
            agent.membership_wake = Some(at);
            self.at(at, Event::MembershipWake { agent: id, at });
        }
    }

    pub(super) fn wake_membership(&mut self, id: u64, at: Time) {
        let now = self.now;
        let Some(agent) = self.agents.get_mut(&id) else { return };
        if agent.membership_wake == Some(at) {
            agent.membership_wake = None;
        }
        if agent.membership.deadline().is_some_and(|due| due <= now) {
            agent.membership.advance(now);
        }
        self.serve_membership(id);
    }

    /// The membership has a notification for the node agent and the supervisor.
    fn notified(&mut self, id: u64, notification: Notification) {
        let elastic = self.plan.elastic();
        let notification =
            if self.plan.programs { self.notified_of_programs(id, notification) } else { Some(notification) };
        let Some(notification) = notification else { return };
        let Some(agent) = self.agents.get_mut(&id) else { return };
        let leads = agent.leader.is_some();
        match notification {
            Notification::Waiting(reason) if leads => self.feed_leader(id, Input::Waiting { reason }),
            Notification::Waiting(reason) => self.feed_node(id, NodeInput::Waiting { reason }),
            Notification::Round(plan) => {
                let epoch = transport::epoch_of(&plan);
                agent.epoch = Some(epoch);
                agent.link_epoch.get_or_insert(epoch);
                self.membership_formed(id, epoch, &plan.nodes);
                if plan.nodes.is_empty() {
                    self.feed_node(id, NodeInput::LeaderFound { epoch });
                } else if leads {
                    self.feed_leader(id, Input::MembershipFormed { epoch, members: plan.nodes });
                    self.feed_node(id, NodeInput::LeaderFound { epoch });
                } else {
                    self.feed_node(id, NodeInput::BecameLeader { epoch, members: plan.nodes });
                }
            }
            Notification::RoundEnded(_) => {
                if leads {
                    self.feed_leader(id, Input::MembershipReopened);
                }
                self.feed_node(id, NodeInput::MembershipReopened);
            }
            Notification::RunEnded(end) => {
                let end = membership_end(end, elastic);
                self.membership_over(id);
                if leads {
                    self.feed_leader(id, Input::MembershipOver(end.clone()));
                }
                self.feed_node(id, NodeInput::MembershipOver(end));
            }
            Notification::NodeJoined { node, host, workers } => {
                self.feed_leader(id, Input::NodeJoined { node, host, workers });
            }
            Notification::NodeLost { node, host, reason } => {
                self.feed_leader(id, Input::NodeLost { node, host, reason })
            }
            Notification::LeaderLost(reason) => {
                agent.link_epoch = None;
                self.feed_node(id, NodeInput::LeaderLost { reason });
            }
            Notification::Message { .. } | Notification::StoreClients(_) => {}
        }
    }

    /// A packet arrived at an agent.
    pub(super) fn arrive(&mut self, id: u64, link: LinkId, frame: Frame) {
        let now = self.now;
        let Some(agent) = self.agents.get_mut(&id) else { return };
        let open = self.network.get_mut(link).is_some_and(|link| !link.ends(id).0.closed);
        match frame {
            // A leader that was given up may still be heard.
            Frame::Packet(packet) if !open => {
                if let Packet::Command(epoch, command) = *packet
                    && agent.membership.leader_link().is_some()
                    && agent.link_epoch.is_some_and(|since| is_stale(epoch, since))
                {
                    self.feed_node(id, NodeInput::Command { epoch, command });
                }
            }
            Frame::Packet(packet) => self.packet_arrives(id, link, *packet),
            Frame::Closed | Frame::Reset => {
                let closed = frame == Frame::Closed;
                self.network.get_mut(link).into_iter().for_each(|link| link.ends(id).0.closed = true);
                if open {
                    agent.membership.link_gone(now, link, closed);
                    self.serve_membership(id);
                }
                self.network.forget_closed();
            }
        }
    }

    fn packet_arrives(&mut self, id: u64, link: LinkId, packet: Packet) {
        let now = self.now;
        let Some(agent) = self.agents.get_mut(&id) else { return };
        match packet {
            Packet::Command(epoch, command) => {
                if agent.membership.leader_link() == Some(link) {
                    agent.membership.received(now);
                    if let Some(leader) = self.network.get_mut(link).map(|link| link.leader.agent) {
                        self.leader_felt(leader, epoch);
                    }
                    self.feed_node(id, NodeInput::Command { epoch, command });
                }
            }
            Packet::Event(event) => {
                if let Some(node) = agent.membership.follower_of(link) {
                    agent.membership.received_from(now, node);
                    self.feed_leader(id, Input::Node { node, event });
                }
            }
            packet => {
                agent.membership.on_packet(now, link, packet);
                self.serve_membership(id);
            }
        }
    }

    /// Sends a command to a node, over the connection to it.
    pub(super) fn send_command(&mut self, id: u64, node: NodeId, epoch: Epoch, command: NodeCommand) {
        if node == NodeId(id) {
            return self.node_later(id, NodeInput::Command { epoch, command });
        }
        let link = self.agents.get(&id).and_then(|agent| agent.membership.follower_link(node));
        if let Some(link) = link {
            self.send(id, link, Packet::Command(epoch, command));
        }
    }
}
