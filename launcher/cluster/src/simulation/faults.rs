//! Faults, signals and users' requests: a plan of them from a seed, and what each does to the world.

use super::{
    links::{Frame, Machine},
    processes::{EndedBy, Hang, Pid, Trap, TrapPoint},
    random::Random,
    run_plan::RunPlan,
    world::{Event, Time, World},
};
use crate::{
    node_agent::input::NodeInput,
    supervisor::{
        effect::{Effect, RequestId},
        input::Input,
    },
};
use enn_common::{
    event::EventKind,
    wire::{
        command::Request,
        node_agent::{NodeCommand, StopSignal},
    },
};
use std::time::Duration;

/// Faults of a run at most.
const FAULTS_MAX: u64 = 6;

/// A fault and its time.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PlannedFault {
    pub(super) at: Time,
    pub(super) fault: Fault,
}

/// What the disk does for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DiskFault {
    Slow,
    Full,
    Hung,
}

/// Effect at which a leader dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CrashPoint {
    Commit,
    HandOff,
    Answer,
    BeginRound,
    RoundStarted,
    Finish,
}

/// Something that happens to a run. Numbers choose among those that live then.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Fault {
    KillWorker(u64),
    HangWorker(u64, Hang),
    StopWorker(u64, Duration),
    Unkillable(u64, Duration),
    ExitEarly(u64),
    KernelCrash(u64),
    OutOfMemory(u64),
    SlowWorker(u64),
    ResetGroup(u64),
    /// The next worker that comes to a point misbehaves there.
    Trap(TrapPoint, Trap),
    /// So many workers in turn die before they are ready.
    CrashLoop(u32),
    /// From now on workers send late messages of the round before.
    OldRoundMessages,
    /// The agent's process dies, with its machine or without; another agent starts there later.
    KillNode {
        which: u64,
        closes: bool,
        back: Option<Duration>,
    },
    StopNode(u64, Duration),
    /// Nothing passes to the leader, or from it.
    CutNode {
        which: u64,
        there: bool,
        back: bool,
        time: Duration,
    },
    ResetLink(u64),
    KillLeader {
        closes: bool,
    },
    /// The leader dies before this effect from now on.
    KillLeaderAfter(u64),
    KillLeaderAt(CrashPoint),
    StopLeader(Duration),
    /// Nothing that the leader sends arrives before then.
    CutLeader(Duration),
    Disk(DiskFault, Duration),
    DamageCheckpoint,
    SpawnFails(u64, Duration),
    BreakNode(u64),
    /// A script says something that is none of the language.
    DetachScript(u64),
    /// Workers with this device die again and again.
    SickDevice {
        machine: u64,
        local_rank: u32,
        /// NVML shows an uncorrectable error.
        is_shown: bool,
    },
    Signal {
        which: Option<u64>,
        signal: StopSignal,
        second: Option<Duration>,
    },
    SecondSignal {
        which: Option<u64>,
        signal: StopSignal,
    },
    Request(Request),
    /// Whoever is paused goes on.
    Relief,
}

impl Fault {
    /// Whether a worker may hang between two steps for good.
    fn may_hang_in_step(&self) -> bool {
        matches!(
            self,
            Self::HangWorker(..)
                | Self::Unkillable(..)
                | Self::Trap(TrapPoint::InStep | TrapPoint::BeforeReady, Trap::Hang(_))
        )
    }

    /// How long it lasts.
    pub(super) fn time(&self) -> Duration {
        match self {
            Self::StopWorker(_, time)
            | Self::Unkillable(_, time)
            | Self::StopNode(_, time)
            | Self::CutNode { time, .. }
            | Self::StopLeader(time)
            | Self::CutLeader(time)
            | Self::Disk(_, time)
            | Self::SpawnFails(_, time) => *time,
            Self::KillNode { back, .. } => back.unwrap_or_default(),
            Self::Signal { second, .. } => second.unwrap_or_default(),
            Self::Request(Request::Cut { seconds, .. }) => Duration::from_secs(u64::from(*seconds)),
            _ => Duration::ZERO,
        }
    }
}

/// Makes the faults of a seed.
pub(super) fn plan_faults(random: &mut Random, plan: &RunPlan) -> Vec<PlannedFault> {
    let count = random.below(FAULTS_MAX + 1);
    let horizon = plan.duration();
    let mut at = random.time(Duration::ZERO, horizon);
    let mut faults = Vec::new();
    for _ in 0..count {
        let fault = random_fault(random, plan);
        let pause = matches!(fault, Fault::Request(Request::Pause {}));
        faults.push(PlannedFault { at, fault });
        if pause {
            let later = at + random.up_to_ms(20_000);
            faults.push(PlannedFault { at: later, fault: Fault::Request(Request::Continue {}) });
        }
        at = if random.one_in(2) {
            at + random.up_to_ms(400)
        } else if random.one_in(2) {
            at + random.up_to_ms(8_000)
        } else {
            random.time(Duration::ZERO, horizon)
        };
    }
    if plan.hang_timeout.is_none() {
        // Nobody would ever notice.
        faults.retain(|planned| !planned.fault.may_hang_in_step());
    }
    if plan.programs {
        // Their leader takes no requests.
        faults.retain(|planned| !matches!(planned.fault, Fault::Request(_)));
    }
    faults.sort_by_key(|fault| fault.at);
    faults
}

fn random_fault(random: &mut Random, plan: &RunPlan) -> Fault {
    let seconds = Duration::from_secs;
    let several = plan.several_nodes();
    let which = random.below(1 << 20);
    let some_time = random.time(Duration::from_millis(100), seconds(20));
    match random.below(if several { 100 } else { 60 }) {
        0..=11 => Fault::KillWorker(which),
        12..=14 => Fault::HangWorker(which, random.pick(&[Hang::Main, Hang::Whole])),
        15..=16 => Fault::StopWorker(which, some_time),
        17..=18 => Fault::Unkillable(which, random.time(seconds(5), seconds(120))),
        19..=20 => Fault::ExitEarly(which),
        21..=22 => Fault::KernelCrash(which),
        23..=24 => Fault::OutOfMemory(which),
        25 => Fault::SlowWorker(which),
        26..=27 => Fault::ResetGroup(which),
        28..=33 => {
            let points = [TrapPoint::BeforeConnected, TrapPoint::BeforeReady, TrapPoint::InStep, TrapPoint::InHalt];
            let traps = [Trap::Die, Trap::Hang(Hang::Main), Trap::Hang(Hang::Whole)];
            Fault::Trap(random.pick(&points), random.pick(&traps))
        }
        34..=35 => Fault::CrashLoop(u32::try_from(random.between(2, 9)).unwrap_or(2)),
        36..=37 => Fault::OldRoundMessages,
        38..=41 => {
            let disk = random.pick(&[DiskFault::Slow, DiskFault::Full, DiskFault::Hung]);
            Fault::Disk(disk, random.time(Duration::from_millis(100), seconds(15)))
        }
        42..=43 => Fault::DamageCheckpoint,
        44..=45 => Fault::SpawnFails(which, some_time),
        46 => Fault::BreakNode(which),
        47..=50 => random_signal(random, which),
        51..=59 => Fault::Request(random_request(random, plan)),
        60..=67 => Fault::KillNode {
            which,
            closes: random.one_in(2),
            back: random.one_in(2).then(|| random.time(seconds(1), seconds(20))),
        },
        68..=71 => Fault::StopNode(which, random.time(seconds(1), seconds(12))),
        72..=77 => {
            let there = !random.one_in(4);
            let back = !there || !random.one_in(4);
            Fault::CutNode { which, there, back, time: random.time(Duration::from_millis(100), seconds(20)) }
        }
        78..=79 => Fault::ResetLink(which),
        80..=85 => Fault::KillLeader { closes: random.one_in(2) },
        86..=89 => Fault::KillLeaderAfter(random.below(60)),
        90..=93 => {
            let points = [
                CrashPoint::Commit,
                CrashPoint::HandOff,
                CrashPoint::Answer,
                CrashPoint::BeginRound,
                CrashPoint::RoundStarted,
                CrashPoint::Finish,
            ];
            Fault::KillLeaderAt(random.pick(&points))
        }
        94..=96 => Fault::StopLeader(random.time(seconds(1), seconds(12))),
        _ => Fault::Request(Request::Drain { node: Some(host(random, plan)) }),
    }
}

/// A node is lost, and its leader cannot be heard from some moment on at which it forms the next membership.
pub(super) fn plan_deaf_membership(random: &mut Random, plan: &RunPlan) -> [PlannedFault; 2] {
    let at = random.time(Duration::from_secs(4), plan.duration());
    let lost = Fault::KillNode { which: random.below(1 << 20), closes: true, back: None };
    let cut = Fault::CutLeader(random.time(Duration::from_secs(8), Duration::from_secs(20)));
    let later = random.up_to_ms(3 * plan.link_delay_ms);
    [PlannedFault { at, fault: lost }, PlannedFault { at: at + later, fault: cut }]
}

fn host(random: &mut Random, plan: &RunPlan) -> String {
    format!("n{}", random.below(plan.nodes as u64))
}

fn random_signal(random: &mut Random, which: u64) -> Fault {
    let signal = random.pick(&[StopSignal::Interrupt, StopSignal::Terminate, StopSignal::TimeLimit]);
    let second = random.one_in(3).then(|| random.up_to_ms(3000));
    Fault::Signal { which: (!random.one_in(2)).then_some(which), signal, second }
}

fn random_request(random: &mut Random, plan: &RunPlan) -> Request {
    match random.below(8) {
        0..=1 => Request::Stop {},
        2..=3 => Request::Pause {},
        4..=5 => {
            let most = u64::from(plan.workers_max) * plan.nodes as u64;
            Request::Resize { workers: u32::try_from(random.between(1, most)).unwrap_or(1) }
        }
        6 => Request::Drain { node: Some(host(random, plan)) },
        _ => Request::Cut { node: host(random, plan), seconds: u32::try_from(random.between(1, 12)).unwrap_or(1) },
    }
}

impl World {
    /// A fault is due.
    pub(super) fn do_fault(&mut self, index: usize) {
        let Some(planned) = self.faults.get(index).cloned() else { return };
        self.trace(|| format!("FAULT {:?}", planned.fault));
        self.observer.note_fault(&planned.fault);
        self.carry_out_fault(planned.fault);
    }

    fn carry_out_fault(&mut self, fault: Fault) {
        match fault {
            Fault::KillWorker(which) => self.on_worker(which, Self::kill_from_outside),
            Fault::HangWorker(which, hang) => {
                self.on_worker(which, |world, pid| world.misbehave(pid, Trap::Hang(hang)))
            }
            Fault::StopWorker(which, time) => self.on_worker(which, |world, pid| world.stop_worker(pid, time)),
            Fault::Unkillable(which, time) => self.on_worker(which, |world, pid| world.freeze(pid, time)),
            Fault::ExitEarly(which) => {
                self.on_worker(which, |world, pid| world.end_process(pid, Some(0), None, EndedBy::Fault));
            }
            Fault::KernelCrash(which) => self.on_worker(which, Self::crash_in_kernel),
            Fault::OutOfMemory(which) => self.on_worker(which, Self::out_of_memory),
            Fault::SlowWorker(which) => self.on_worker(which, |world, pid| {
                world.processes.get_mut(&pid).into_iter().for_each(|process| process.slowness = 3);
            }),
            Fault::ResetGroup(which) => self.on_worker(which, Self::reset_group),
            Fault::Trap(point, trap) => self.traps.entry(point).or_default().push_back(trap),
            Fault::CrashLoop(count) => {
                let traps = self.traps.entry(TrapPoint::BeforeReady).or_default();
                traps.extend((0..count).map(|_| Trap::Die));
            }
            Fault::OldRoundMessages => self.late_messages = true,
            Fault::KillNode { which, closes, back } => self.on_agent(which, |world, id| {
                world.kill_node(id, closes, back);
            }),
            Fault::StopNode(which, time) => self.on_agent(which, |world, id| world.stop_agent(id, time)),
            Fault::CutNode { which, there, back, time } => self.on_agent(which, |world, id| {
                world.cut_agent(id, (there, back), time);
            }),
            Fault::ResetLink(which) => self.on_agent(which, Self::reset_link),
            Fault::KillLeader { closes } => self.on_leader(|world, id| world.kill_node(id, closes, None)),
            Fault::KillLeaderAfter(count) => self.crash_after = Some(self.effects + count + 1),
            Fault::KillLeaderAt(point) => self.crash_at = Some(point),
            Fault::StopLeader(time) => self.on_leader(|world, id| world.stop_agent(id, time)),
            Fault::CutLeader(time) => self.on_leader(|world, id| world.cut_agent(id, (true, false), time)),
            Fault::Disk(kind, time) => self.disturb_disk(kind, time),
            Fault::DamageCheckpoint => {
                if let Some(mut newest) = self.disk.checkpoints.last_entry() {
                    newest.get_mut().damaged = true;
                }
            }
            Fault::SpawnFails(which, time) => self.on_agent(which, |world, id| {
                let machine = world.agents[&id].machine;
                world.machines[machine.0].spawn_fails_until = world.now + time;
            }),
            Fault::DetachScript(which) => self.on_worker(which, Self::detach_script),
            Fault::SickDevice { machine, local_rank, is_shown } => self.sicken(machine, local_rank, is_shown),
            Fault::BreakNode(which) => self.on_agent(which, |world, id| {
                world.feed_node(id, NodeInput::Fault { reason: "too many open files".to_owned() });
            }),
            Fault::Signal { which, signal, second } => {
                self.signal_nodes(which, signal);
                if let Some(after) = second {
                    let fault = Fault::SecondSignal { which, signal };
                    self.faults.push(PlannedFault { at: self.now + after, fault });
                    self.at(self.now + after, Event::Fault(self.faults.len() - 1));
                }
            }
            Fault::SecondSignal { which, signal } => self.signal_nodes(which, signal),
            Fault::Request(request) => self.ask(request),
            Fault::Relief => self.relieve(),
        }
    }

    fn on_worker(&mut self, which: u64, act: impl FnOnce(&mut Self, Pid)) {
        let living: Vec<Pid> = self.processes.values().filter(|one| one.alive).map(|one| one.pid).collect();
        if let Some(pid) = pick(which, &living) {
            self.trace(|| format!("  it is process {pid}"));
            act(self, pid);
        }
    }

    fn on_agent(&mut self, which: u64, act: impl FnOnce(&mut Self, u64)) {
        let living: Vec<u64> = self.agents.keys().copied().collect();
        if let Some(id) = pick(which, &living) {
            self.trace(|| format!("  it is n{id}"));
            act(self, id);
        }
    }

    fn on_leader(&mut self, act: impl FnOnce(&mut Self, u64)) {
        if let Some(id) = self.leading() {
            act(self, id);
        }
    }

    /// The newest leader that lives.
    pub(super) fn leading(&self) -> Option<u64> {
        let leads =
            |agent: &&super::agents::Agent| agent.leader.as_ref().is_some_and(|leader| leader.outcome.is_none());
        self.agents
            .values()
            .filter(leads)
            .max_by_key(|agent| agent.leader.as_ref().map(|leader| leader.epoch))
            .map(|agent| agent.id)
    }

    /// Freezes a process, so that not even SIGKILL ends it.
    fn freeze(&mut self, pid: Pid, time: Duration) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.unkillable_until = Some(self.now + time);
        }
        self.stop_worker(pid, time);
    }

    fn signal_nodes(&mut self, which: Option<u64>, signal: StopSignal) {
        match which {
            Some(which) => self.on_agent(which, |world, id| world.signal_node(id, signal)),
            None => {
                let all: Vec<u64> = self.agents.keys().copied().collect();
                all.into_iter().for_each(|id| self.signal_node(id, signal));
            }
        }
    }

    fn signal_node(&mut self, id: u64, signal: StopSignal) {
        let programs = self.plan.programs;
        let program_signal = NodeInput::ProgramSignal(Self::program_signal(signal));
        self.node_later(id, if programs { program_signal } else { NodeInput::Signal(signal) });
    }

    fn disturb_disk(&mut self, kind: DiskFault, time: Duration) {
        let until = Some(self.now + time);
        match kind {
            DiskFault::Slow => self.disk.slow_until = until,
            DiskFault::Full => self.disk.full_until = until,
            DiskFault::Hung => self.disk.hung_until = until,
        }
    }

    /// A user asks the leader for something.
    fn ask(&mut self, request: Request) {
        let Some(id) = self.leading() else { return };
        self.last_request += 1;
        let number = RequestId(self.last_request);
        let stopped = self.machines[self.agents[&id].machine.0].stopped_until > self.now;
        let Some(leader) = self.agents.get_mut(&id).and_then(|agent| agent.leader.as_mut()) else { return };
        if !leader.control_open || stopped {
            return;
        }
        leader.requests.insert(number, request.clone());
        self.request_sent(id, number, &request);
        self.feed_leader(id, Input::Request { id: number, request });
    }

    fn relieve(&mut self) {
        let paused = self.leading().and_then(|id| self.agents[&id].leader.as_ref());
        if paused.is_some_and(|leader| leader.supervisor.snapshot().paused) {
            self.ask(Request::Continue {});
        }
        let again = self.now + Duration::from_secs(20);
        self.faults.push(PlannedFault { at: again, fault: Fault::Relief });
        self.at(again, Event::Fault(self.faults.len() - 1));
    }

    /// The agent of a node dies; another one may start there later.
    pub(super) fn kill_node(&mut self, id: u64, closes: bool, back: Option<Duration>) {
        let Some(agent) = self.agents.get(&id) else { return };
        let machine = agent.machine;
        self.kill_agent(id, closes);
        if let (Some(back), true) = (back, machine != Machine(0)) {
            self.at(self.now + back, Event::StartAgent(machine));
        }
    }

    /// The process of an agent is gone, with its workers; `closes`: its system tells the others.
    pub(super) fn kill_agent(&mut self, id: u64, closes: bool) {
        self.agent_gone(id, closes);
        let workers: Vec<Pid> =
            self.processes.values().filter(|one| one.agent == id && one.alive).map(|one| one.pid).collect();
        for pid in workers {
            self.end_process(pid, None, Some(9), EndedBy::Machine);
        }
        for link in self.network.of(id) {
            if closes {
                self.close_link(id, link, Frame::Closed);
            } else {
                self.abandon_link(id, link);
            }
        }
        let Some(agent) = self.agents.remove(&id) else { return };
        self.machines[agent.machine.0].agent = None;
        if self.disk.lock == Some(id) {
            self.disk.lock = None;
        }
        self.trace(|| format!("n{id} is gone"));
    }

    /// SIGSTOP of an agent, and SIGCONT later. Its workers go on.
    fn stop_agent(&mut self, id: u64, time: Duration) {
        let Some(agent) = self.agents.get(&id) else { return };
        let machine = agent.machine;
        let until = self.now + time;
        self.machines[machine.0].stopped_until = until;
        self.at(until, Event::MachineWakes(machine));
    }

    /// A stopped agent goes on.
    pub(super) fn machine_wakes(&mut self, machine: Machine) {
        if let Some(id) = self.machines[machine.0].agent {
            self.observer.note_wake(id, self.now);
            self.on_membership(id, |membership, now| membership.on_resume(now));
        }
    }

    fn cut_agent(&mut self, id: u64, ways: (bool, bool), time: Duration) {
        let Some(agent) = self.agents.get(&id) else { return };
        let machine = agent.machine;
        let until = self.now + time;
        for other in (0..self.plan.nodes).map(Machine).filter(|other| *other != machine) {
            if ways.0 {
                self.network.cut(machine, other, until);
            }
            if ways.1 {
                self.network.cut(other, machine, until);
            }
        }
    }

    /// The network breaks the connection between a node and its leader, though both live.
    fn reset_link(&mut self, id: u64) {
        let Some(link) = self.agents.get(&id).and_then(|agent| agent.membership.leader_link()) else { return };
        let Some(other) = self.network.get_mut(link).map(|link| link.ends(id).1.agent) else { return };
        let now = self.now;
        self.at(now, Event::Arrive { agent: id, link, frame: Frame::Reset });
        self.at(now, Event::Arrive { agent: other, link, frame: Frame::Reset });
    }

    /// Whether a leader dies before it carries out this effect.
    pub(super) fn crash_due(&mut self, effect: &Effect) -> bool {
        self.effects += 1;
        let meets = |point: CrashPoint| match point {
            CrashPoint::Commit => matches!(effect, Effect::Commit(_)),
            CrashPoint::HandOff => matches!(effect, Effect::HandOff(_)),
            CrashPoint::Answer => matches!(effect, Effect::Answer { .. }),
            CrashPoint::BeginRound => matches!(
                effect,
                Effect::Send { command: NodeCommand::BeginRound { .. } | NodeCommand::BeginGroup { .. }, .. }
            ),
            CrashPoint::RoundStarted => matches!(effect, Effect::Journal(EventKind::RoundStarted { .. })),
            CrashPoint::Finish => matches!(effect, Effect::Finish(_)),
        };
        if self.crash_at.is_some_and(meets) {
            self.crash_at = None;
            // Before it, or right after it.
            if self.random.one_in(2) {
                return true;
            }
            self.crash_after = Some(self.effects + 1);
        }
        if self.crash_after == Some(self.effects) {
            self.crash_after = None;
            return true;
        }
        false
    }

    /// Late messages of the round before, behind which the worker enters the next.
    pub(super) fn say_late(&mut self, pid: Pid) {
        use enn_common::wire::message::FromWorker;
        if !self.late_messages || !self.random.one_in(2) {
            return;
        }
        let Some(process) = self.processes.get(&pid) else { return };
        let Some(seat) = process.seat() else { return };
        let step = process.step();
        let round = seat.round;
        let key = super::groups::attempt_of(seat).0;
        let dir = super::groups::being_written(step, &key);
        let table = super::groups::table(seat.rank);
        let message = match self.random.below(4) {
            0 => FromWorker::Ready { device: "cpu".into(), backend: "gloo".into(), libtorch: "2.11".into() },
            1 => FromWorker::Halted { round, step, kept: process.state.is_some() },
            2 => FromWorker::ShardWritten { step, epoch: 1, dir, metric: None, table, blocked: 0.0 },
            _ => FromWorker::OutOfMemory { step, error: "no memory".into() },
        };
        self.say(pid, message);
    }
}

fn pick<T: Copy>(which: u64, list: &[T]) -> Option<T> {
    let count = u64::try_from(list.len()).ok().filter(|count| *count > 0)?;
    list.get(usize::try_from(which % count).ok()?).copied()
}
