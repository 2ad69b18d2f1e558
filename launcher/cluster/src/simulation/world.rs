//! Events in virtual time: the world calls the real machines and carries out what they ask for.

use super::{
    agents::Agent,
    broker::LocalConnection,
    disk::Disk,
    faults::PlannedFault,
    groups::{Group, GroupKey},
    invariants::Observer,
    links::{Frame, Machine, Network},
    processes::{Pid, Process, ProcessStep, Trap, TrapPoint},
    random::Random,
    run_plan::RunPlan,
    scripts::BrokerMessage,
    sick_devices::SickDevices,
    trace::Trace,
};
use crate::{
    node_agent::input::NodeInput,
    rendezvous::simulated::{LinkId, Packet},
    supervisor::input::Input,
};
use enn_common::{
    id::WorkerId,
    wire::{message::ToWorker, node_agent::WorkerExit},
};
use std::{
    cmp::Ordering,
    collections::{BTreeMap, BinaryHeap, VecDeque},
    path::PathBuf,
    time::Duration,
};

/// Time since the world was made.
pub(super) type Time = Duration;

/// Events that a world may have, lest a run that never ends is simulated for ever.
const EVENTS_MAX: u64 = 30_000_000;
/// Ticks of one machine at one moment, after which it is taken to spin.
const TICKS_MAX: u32 = 200;

/// What happens at a moment.
#[derive(Debug)]
pub(super) enum Event {
    Fault(usize),
    StartAgent(Machine),
    AgentExits(u64),
    MachineWakes(Machine),
    Arrive { agent: u64, link: LinkId, frame: Frame },
    TryConnect { agent: u64, target: u64, attempt: u64 },
    MembershipWake { agent: u64, at: Time },
    Node { agent: u64, input: Box<NodeInput> },
    NodeWake { agent: u64, at: Time },
    Leader { agent: u64, input: Box<Input> },
    LeaderWake { agent: u64, at: Time },
    Batch(u64),
    TaskDone(u64),
    Lock { agent: u64, until: Time },
    LogDir { agent: u64, round: u64 },
    Process { pid: Pid, turn: u64, step: ProcessStep },
    Group { key: GroupKey, turn: u64 },
    ShardDone { key: GroupKey, rank: u32, step: u64 },
    Said { agent: u64, connection: LocalConnection, message: Box<BrokerMessage> },
    HungUp { agent: u64, connection: LocalConnection },
    Reaped { agent: u64, pid: Pid, exit: Box<WorkerExit> },
    Persisted { agent: u64, worker: WorkerId, ticket: u64, dir: PathBuf, rank: u32 },
}

impl Event {
    /// The agent whose process handles the event.
    fn agent(&self) -> Option<u64> {
        match self {
            Self::AgentExits(agent)
            | Self::Arrive { agent, .. }
            | Self::MembershipWake { agent, .. }
            | Self::Node { agent, .. }
            | Self::NodeWake { agent, .. }
            | Self::Leader { agent, .. }
            | Self::LeaderWake { agent, .. }
            | Self::Batch(agent)
            | Self::TaskDone(agent)
            | Self::Lock { agent, .. }
            | Self::LogDir { agent, .. }
            | Self::Said { agent, .. }
            | Self::HungUp { agent, .. }
            | Self::Reaped { agent, .. }
            | Self::Persisted { agent, .. } => Some(*agent),
            Self::Fault(_)
            | Self::StartAgent(_)
            | Self::MachineWakes(_)
            | Self::TryConnect { .. }
            | Self::Process { .. }
            | Self::Group { .. }
            | Self::ShardDone { .. } => None,
        }
    }
}

struct Scheduled {
    at: Time,
    number: u64,
    event: Event,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    /// The earliest is the greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

/// One machine of the world.
#[derive(Debug, Default)]
pub(super) struct MachineState {
    pub(super) agent: Option<u64>,
    /// The agent's process does nothing before then.
    pub(super) stopped_until: Time,
    pub(super) spawn_fails_until: Time,
}

/// A violation of what must hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Violation {
    /// Number of the rule in `invariants`, or the name of one without a number.
    pub(super) rule: &'static str,
    pub(super) what: String,
    pub(super) at: Time,
}

/// Everything.
pub(super) struct World {
    pub(super) now: Time,
    pub(super) plan: RunPlan,
    pub(super) faults: Vec<PlannedFault>,
    pub(super) random: Random,
    queue: BinaryHeap<Scheduled>,
    number: u64,
    pub(super) machines: Vec<MachineState>,
    pub(super) agents: BTreeMap<u64, Agent>,
    pub(super) last_agent: u64,
    /// The agent that leads at the endpoint of the rendezvous.
    pub(super) endpoint: u64,
    pub(super) network: Network,
    pub(super) processes: BTreeMap<Pid, Process>,
    pub(super) last_pid: Pid,
    pub(super) local_connections: usize,
    pub(super) groups: BTreeMap<GroupKey, Group>,
    /// Messages that a stopped process has not read.
    pub(super) unread: BTreeMap<Pid, Vec<ToWorker>>,
    pub(super) traps: BTreeMap<TrapPoint, VecDeque<Trap>>,
    pub(super) disk: Disk,
    pub(super) observer: Observer,
    pub(super) leaders_so_far: u32,
    /// Effects of leaders after which the leader dies, and those so far.
    pub(super) crash_after: Option<u64>,
    pub(super) crash_at: Option<super::faults::CrashPoint>,
    pub(super) effects: u64,
    /// Workers send messages of the round before when they are given a seat.
    pub(super) late_messages: bool,
    pub(super) sick: SickDevices,
    pub(super) last_request: u64,
    trace: Option<Trace>,
    violation: Option<Violation>,
    ticks: BTreeMap<u64, (Time, u32)>,
}

impl World {
    pub(super) fn new(plan: RunPlan, faults: Vec<PlannedFault>, seed: u64, trace: bool) -> Self {
        let machines = (0..plan.nodes).map(|_| MachineState::default()).collect();
        let network = Network::new(Duration::from_millis(plan.link_delay_ms));
        let mut world = Self {
            now: Duration::ZERO,
            plan,
            faults,
            random: Random::new(seed ^ 0x5EED),
            queue: BinaryHeap::new(),
            number: 0,
            machines,
            agents: BTreeMap::new(),
            last_agent: 0,
            endpoint: 0,
            network,
            processes: BTreeMap::new(),
            last_pid: 1000,
            local_connections: 0,
            groups: BTreeMap::new(),
            unread: BTreeMap::new(),
            traps: BTreeMap::new(),
            disk: Disk::default(),
            observer: Observer::default(),
            leaders_so_far: 0,
            crash_after: None,
            crash_at: None,
            effects: 0,
            late_messages: false,
            sick: SickDevices::default(),
            last_request: 0,
            trace: trace.then(Trace::default),
            violation: None,
            ticks: BTreeMap::new(),
        };
        for index in 0..world.faults.len() {
            world.at(world.faults[index].at, Event::Fault(index));
        }
        world.start_agent(Machine(0));
        for machine in 1..world.plan.nodes {
            let delay = world.random.up_to_ms(1500);
            world.at(delay, Event::StartAgent(Machine(machine)));
        }
        world
    }

    pub(super) fn at(&mut self, at: Time, event: Event) {
        self.number += 1;
        self.queue.push(Scheduled { at, number: self.number, event });
    }

    pub(super) fn traces(&self) -> bool {
        self.trace.is_some()
    }

    pub(super) fn trace(&mut self, line: impl FnOnce() -> String) {
        let now = self.now;
        if let Some(trace) = &mut self.trace {
            trace.push(now, line());
        }
    }

    pub(super) fn take_trace(&mut self) -> Option<Trace> {
        self.trace.take()
    }

    /// Notes the first violation.
    pub(super) fn violation(&mut self, rule: &'static str, what: String) {
        self.trace(|| format!("VIOLATION of {rule}: {what}"));
        let at = self.now;
        self.violation.get_or_insert(Violation { rule, what, at });
    }

    /// A machine ticks: it may not do so without end at one moment.
    pub(super) fn count_tick(&mut self, id: u64) {
        let now = self.now;
        let entry = self.ticks.entry(id).or_insert((now, 0));
        *entry = if entry.0 == now { (now, entry.1 + 1) } else { (now, 1) };
        if entry.1 > TICKS_MAX {
            self.violation("14", format!("the machine of n{id} ticks without end at one moment"));
        }
    }

    /// Runs until the run is over for everybody, or something is violated.
    pub(super) fn run(&mut self) -> Result<(), Violation> {
        let deadline = self.end_of_time();
        let mut events = 0;
        while let Some(scheduled) = self.queue.pop() {
            self.now = scheduled.at;
            events += 1;
            if self.now > deadline || events > EVENTS_MAX {
                self.not_over();
                break;
            }
            self.handle(scheduled.event);
            if self.violation.is_some() || self.is_over() {
                break;
            }
        }
        if self.violation.is_none() {
            self.check_end();
        }
        self.violation.take().map_or(Ok(()), Err)
    }

    /// Whether no agent is left.
    fn is_over(&self) -> bool {
        let to_come = self.now < Duration::from_millis(1500);
        !to_come && self.agents.is_empty()
    }

    fn handle(&mut self, event: Event) {
        if let Some(agent) = event.agent() {
            let Some(known) = self.agents.get(&agent) else { return };
            let machine = &self.machines[known.machine.0];
            if machine.stopped_until > self.now {
                let until = machine.stopped_until;
                return self.at(until, event);
            }
        }
        match event {
            Event::Fault(index) => self.do_fault(index),
            Event::StartAgent(machine) => {
                if self.machines[machine.0].agent.is_none() {
                    self.start_agent(machine);
                }
            }
            Event::AgentExits(agent) => self.kill_agent(agent, true),
            Event::MachineWakes(machine) => self.machine_wakes(machine),
            Event::Arrive { agent, link, frame } => self.arrive(agent, link, frame),
            Event::TryConnect { agent, target, attempt } => self.try_connect(agent, target, attempt),
            Event::MembershipWake { agent, at } => self.wake_membership(agent, at),
            Event::Node { agent, input } => self.feed_node(agent, *input),
            Event::NodeWake { agent, at } => self.wake_node(agent, at),
            Event::Leader { agent, input } => self.feed_leader(agent, *input),
            Event::LeaderWake { agent, at } => self.wake_leader(agent, at),
            Event::Batch(agent) => self.run_batch(agent),
            Event::TaskDone(agent) => self.task_done(agent),
            Event::Lock { agent, until } => self.try_lock(agent, until),
            Event::LogDir { agent, round } => self.make_log_dir(agent, round),
            Event::Process { pid, turn, step } => self.process_step(pid, turn, step),
            Event::Group { key, turn } => self.group_step(&key, turn),
            Event::ShardDone { key, rank, step } => self.shard_done(&key, rank, step),
            Event::Said { agent, connection, message } => self.broker_hears(agent, connection, *message),
            Event::HungUp { agent, connection } => self.broker_lost(agent, connection),
            Event::Reaped { agent, pid, exit } => self.reaped(agent, pid, *exit),
            Event::Persisted { agent, worker, ticket, dir, rank } => self.persisted(agent, worker, ticket, dir, rank),
        }
    }

    /// When something that is written to the disk now is there.
    pub(super) fn disk_ready_at(&mut self) -> Time {
        let slow = self.disk.slow_until.is_some_and(|until| until > self.now);
        let high = if slow { self.plan.disk_time * 20 } else { self.plan.disk_time };
        self.now + self.random.time(high / 2, high)
    }

    /// Sends something over a connection.
    pub(super) fn send(&mut self, from: u64, link: LinkId, packet: Packet) {
        let arrival = self.network.arrival(link, from, self.now, &mut self.random);
        if let Some(found) = arrival {
            self.at(found.0, Event::Arrive { agent: found.1, link, frame: Frame::Packet(Box::new(packet)) });
        }
    }

    /// Closes a connection from one side; the other side hears of it behind what was sent.
    pub(super) fn close_link(&mut self, from: u64, link: LinkId, frame: Frame) {
        if let Some(found) = self.network.arrival(link, from, self.now, &mut self.random) {
            self.at(found.0, Event::Arrive { agent: found.1, link, frame });
        }
        self.abandon_link(from, link);
    }

    /// Reads nothing more from a connection.
    pub(super) fn abandon_link(&mut self, from: u64, link: LinkId) {
        self.network.get_mut(link).into_iter().for_each(|link| link.ends(from).0.closed = true);
    }

    /// An agent wants to connect to the one of this number.
    pub(super) fn connect(&mut self, agent: u64, target: u64) {
        let Some(attempt) = self.agents.get(&agent).and_then(|agent| agent.membership.attempt()) else { return };
        let delay = self.random.time(Duration::from_micros(100), Duration::from_millis(self.plan.link_delay_ms * 2));
        self.at(self.now + delay, Event::TryConnect { agent, target, attempt });
    }

    fn try_connect(&mut self, id: u64, target: u64, attempt: u64) {
        let now = self.now;
        let Some(agent) = self.agents.get(&id) else { return };
        if agent.membership.attempt() != Some(attempt) {
            return;
        }
        let machine = agent.machine;
        let again = Event::TryConnect { agent: id, target, attempt };
        let other = self.agents.get(&target).map(|other| (other.machine, other.membership.leads()));
        let place = other.map(|other| other.0).or_else(|| self.observer.machine_of(target));
        let apart = |from, to| self.network.cut_until(from, to).is_some_and(|until| until > now);
        let cut = place.is_some_and(|place| apart(machine, place) || apart(place, machine));
        let stopped = place.is_some_and(|place| self.machines[place.0].stopped_until > now);
        let lost = self.observer.is_lost_silently(target);
        match other {
            _ if cut || lost || stopped => self.at(now + Duration::from_millis(50), again),
            Some((place, true)) => {
                let link = self.network.open(now, (id, machine), (target, place));
                self.on_membership(id, |membership, now| membership.connected(now, link));
            }
            // It is not the host yet: the connection waits to be taken.
            Some((_, false)) => self.at(now + Duration::from_millis(50), again),
            None => self.on_membership(id, |membership, now| membership.refused(now, true)),
        }
    }
}
