//! Programs of a run without a contract of ours: they work for a while and exit with 0, or fail, hang, or die, and what must hold of them.

use super::{
    agents::membership_end,
    processes::{EndedBy, Pid, Process, ProcessStep, Stage, TrapPoint},
    world::World,
};
use crate::{
    node_agent::{
        effect::{NodeEffect, ProgramRound},
        input::NodeInput,
    },
    rendezvous::{NodeId, Notification, simulated::Action},
    supervisor::input::Input,
    transport,
};
use enn_common::{
    failure::Failure,
    id::WorkerId,
    wire::{
        control::Phase,
        node_agent::{Epoch, StopSignal},
    },
};
use nix::sys::signal::Signal;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// Time between two signs of progress of a program.
const PROGRESS_PERIOD: Duration = Duration::from_millis(700);
/// Code with which a program fails before it is ready.
const EARLY_CODE: i32 = 3;

/// A seat of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ProgramSeat {
    pub(super) round: u64,
    pub(super) rank: u32,
    pub(super) world: u32,
    /// The node in whose store it meets the others.
    pub(super) leader: NodeId,
}

/// The nodes of one round, as those that began it said.
#[derive(Debug, Default)]
pub(super) struct ProgramRounds {
    /// By round and by the address of the node that leads: two sides of a broken network may use a number each.
    ranks: BTreeMap<(u64, String), BTreeSet<u32>>,
    /// Restarts that each leader asked for.
    restarts: BTreeMap<u64, u32>,
}

impl World {
    /// Carries out an effect about programs.
    pub(super) fn apply_programs(&mut self, id: u64, effect: NodeEffect) {
        match effect {
            NodeEffect::StartPrograms(round) => self.start_programs(id, *round),
            NodeEffect::FindCause => self.find_cause(id),
            NodeEffect::ClearGroup { .. } => self.group_cleared(id),
            _ => {}
        }
    }

    fn start_programs(&mut self, id: u64, starts: ProgramRound) {
        let Some(agent) = self.agents.get(&id) else { return };
        let machine = agent.machine;
        let now = self.now;
        self.check_programs(id, &starts);
        let before: u32 =
            starts.plan.members.iter().take(starts.plan.node_rank as usize).map(|member| member.local_world).sum();
        let world = starts.plan.members.iter().map(|member| member.local_world).sum();
        let round = starts.plan.round;
        let leader = starts.plan.leader;
        let mut failed = false;
        for (rank, worker) in (before..).zip(starts.workers) {
            let fails = self.machines[machine.0].spawn_fails_until > now;
            let input = if failed || fails {
                let failure = Failure { round, rank, code: Some(126), early: true, ..Failure::default() };
                let failure = (!failed).then(|| Box::new(failure));
                failed = true;
                NodeInput::ProgramNotStarted { worker, failure }
            } else {
                let pid = self.begin_program(id, worker, ProgramSeat { round, rank, world, leader });
                NodeInput::ProgramSpawned { worker, pid, forked: false }
            };
            self.node_later(id, input);
        }
    }

    fn begin_program(&mut self, id: u64, worker: WorkerId, seat: ProgramSeat) -> Pid {
        self.last_pid += 1;
        let pid = self.last_pid;
        let machine = self.agents[&id].machine;
        let mut process = Process::new(pid, worker, machine, id, self.now);
        process.program = Some(seat);
        self.processes.insert(pid, process);
        let other = self.agents.get_mut(&id).and_then(|agent| agent.workers.insert(worker, pid));
        if let Some(other) = other {
            self.violation("3", format!("n{id} gives process {pid} the name of process {other}"));
        }
        let delay = self.random.time(self.plan.connect_time / 2, self.plan.connect_time);
        self.step_later(pid, delay, ProcessStep::ProgramReady);
        pid
    }

    /// A program has begun its work.
    pub(super) fn program_ready(&mut self, pid: Pid) {
        if self.springs(TrapPoint::BeforeReady, pid) {
            return;
        }
        self.enter_stage(pid, Stage::Idle, Phase::Compute);
        self.processes.get_mut(&pid).into_iter().for_each(|process| process.has_device = true);
        self.program_goes_on(pid);
    }

    /// A program made progress.
    pub(super) fn program_goes_on(&mut self, pid: Pid) {
        if self.springs(TrapPoint::InStep, pid) {
            return;
        }
        let now = self.now;
        let work = self.plan.step_time * u32::try_from(self.plan.steps).unwrap_or(u32::MAX);
        let Some(process) = self.processes.get_mut(&pid) else { return };
        process.progress_at = now;
        process.waited += PROGRESS_PERIOD / process.slowness;
        let done = process.waited >= work;
        self.observer.last_step_at = now;
        if done {
            return self.end_process(pid, Some(0), None, EndedBy::Itself);
        }
        self.step_later(pid, PROGRESS_PERIOD, ProcessStep::ProgramGoesOn);
    }

    /// Finds a worker of the round that failed.
    fn find_cause(&mut self, id: u64) {
        let failed = |process: &&Process| process.agent == id && !process.alive && process.exit_code != Some(0);
        let newest = self.processes.values().filter(|process| process.agent == id).filter_map(|one| one.program);
        let Some(round) = newest.map(|seat| seat.round).max() else { return };
        let in_round = |process: &&Process| process.program.is_some_and(|seat| seat.round == round);
        let Some(process) = self.processes.values().filter(failed).find(in_round) else { return };
        let early = !process.has_device;
        let rank = process.program.map_or(0, |seat| seat.rank);
        let code = process.exit_code.or(early.then_some(EARLY_CODE));
        let failure =
            Failure { round, rank, host: format!("n{}", process.machine.0), code, early, ..Failure::default() };
        self.node_later(id, NodeInput::CauseFound(Box::new(failure)));
    }

    /// News of the membership of a run of programs, as inputs of the node and of the supervisor.
    pub(super) fn notified_of_programs(&mut self, id: u64, notification: Notification) -> Option<Notification> {
        let elastic = self.plan.elastic();
        let leads = self.agents.get(&id).is_some_and(|agent| agent.leader.is_some());
        match notification {
            Notification::Waiting(reason) => self.feed_node(id, NodeInput::Waiting { reason }),
            Notification::RoundEnded(end) => {
                if leads {
                    self.feed_leader(id, Input::MembershipReopened);
                }
                self.feed_node(id, NodeInput::RoundEnded(end));
            }
            Notification::RunEnded(end) => {
                self.membership_over(id);
                if leads {
                    self.feed_leader(id, Input::MembershipOver(membership_end(end.clone(), elastic)));
                }
                self.feed_node(id, NodeInput::GroupOver(end));
            }
            Notification::Round(plan) => {
                self.feed_node(id, NodeInput::RoundPlanned(Box::new(plan.clone())));
                return Some(Notification::Round(plan));
            }
            notification => return Some(notification),
        }
        None
    }

    /// The membership is told what the supervisor decided about a round of programs.
    pub(super) fn end_membership_round(
        &mut self,
        id: u64,
        epoch: Epoch,
        end: enn_common::wire::node::RoundEnd,
        restart: (u32, Duration),
    ) {
        let round = transport::round_of(epoch);
        let restarts = self.observer.programs.restarts.entry(id).or_default();
        *restarts += 1;
        let restarts = *restarts;
        if restarts > self.plan.max_restarts {
            let allowed = self.plan.max_restarts;
            self.violation("9", format!("n{id} restarts {restarts} times, {allowed} are allowed"));
        }
        self.on_membership(id, |membership, now| membership.close_round(now, round, end, restart.0, restart.1));
    }

    /// A signal for a node that runs programs.
    pub(super) fn program_signal(signal: StopSignal) -> Signal {
        match signal {
            StopSignal::Interrupt => Signal::SIGINT,
            StopSignal::Terminate => Signal::SIGTERM,
            StopSignal::TimeLimit => Signal::SIGUSR1,
        }
    }

    /// A round begins on a node: none of its workers of another round lives, the store has been cleared by nobody who has some, and
    /// the ranks of all nodes are different.
    fn check_programs(&mut self, id: u64, starts: &ProgramRound) {
        let now = self.now;
        let round = starts.plan.round;
        let frozen = |process: &Process| process.unkillable_until.is_some_and(|until| until > now);
        let old = |process: &&Process| process.agent == id && process.alive && !frozen(process);
        if let Some(pid) = self.processes.values().find(old).map(|process| process.pid) {
            self.violation("2", format!("n{id} begins round {round} while process {pid} of another round lives"));
        }
        if starts.restarts > self.plan.max_restarts {
            let restarts = starts.restarts;
            self.violation("9", format!("round {round} of n{id} is restart {restarts}: {}", self.plan.max_restarts));
        }
        let own = starts.plan.members.get(starts.plan.node_rank as usize).map_or(0, |member| member.local_world);
        if own as usize != starts.workers.len() {
            self.violation("4", format!("n{id} starts {} of {own} workers in round {round}", starts.workers.len()));
        }
        let first: u32 =
            starts.plan.members.iter().take(starts.plan.node_rank as usize).map(|member| member.local_world).sum();
        let ranks = self.observer.programs.ranks.entry((round, starts.plan.master.0.clone())).or_default();
        let twice: Vec<u32> = (first..first + own).filter(|rank| !ranks.insert(*rank)).collect();
        if !twice.is_empty() {
            self.violation("2", format!("ranks {twice:?} of round {round} are given twice"));
        }
    }

    /// A node has cleared its round: none of its workers lives.
    fn group_cleared(&mut self, id: u64) {
        let now = self.now;
        let alive = |process: &&Process| {
            process.agent == id && process.alive && process.unkillable_until.is_none_or(|until| until <= now)
        };
        if let Some(pid) = self.processes.values().find(alive).map(|process| process.pid) {
            self.violation("5", format!("n{id} clears its round while process {pid} lives"));
        }
        if let Some(agent) = self.agents.get_mut(&id) {
            agent.workers.clear();
        }
    }

    /// A membership begins a round and clears its store: no worker of its nodes lives that meets the others there. A leader that was taken
    /// for lost may still count nodes that have another one.
    pub(super) fn check_store_cleared(&mut self, id: u64, nodes: &[NodeId]) {
        let now = self.now;
        let alive = |process: &&Process| {
            process.alive
                && nodes.contains(&NodeId(process.agent))
                && process.program.is_some_and(|seat| seat.leader == NodeId(id))
                && process.unkillable_until.is_none_or(|until| until <= now)
        };
        if let Some(pid) = self.processes.values().find(alive).map(|process| process.pid) {
            self.violation("5", format!("the store is cleared while process {pid} lives"));
        }
    }

    /// Counts a round that a leader begins.
    pub(super) fn group_observed(&mut self, id: u64, round: u64) {
        if self.observer.last_group != Some((id, round)) {
            self.observer.last_group = Some((id, round));
            self.observer.rounds += 1;
        }
    }
}

/// Actions of the membership that a world of programs looks at.
pub(super) fn begun(action: &Action) -> Option<&[NodeId]> {
    match action {
        Action::Notify(Notification::Round(plan)) if !plan.nodes.is_empty() => Some(&plan.nodes),
        _ => None,
    }
}
