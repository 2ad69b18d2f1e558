//! Workers that are any program: they attach to their broker or do not, keep their state where they are told that a round broke, and save by
//! themselves when they are to end.

use super::{
    faults::{Fault, PlannedFault, plan_faults},
    groups::Group,
    invariants::LeaderView,
    processes::{EndedBy, Pid, Process, ProcessStep, Stage, Trap},
    random::Random,
    run_plan::{RunPlan, Sharding},
    sick_devices::plan_sick_devices,
    world::World,
};
use enn_broker::roster::ConnectionId;
use enn_common::{
    id::WorkerId,
    kernels::Quarantined,
    wire::{
        control::Phase,
        message::{Assignment, FromWorker, WorkerTask},
        node_agent::SeatFacts,
        script::{FromScript, SCRIPT_PROTOCOL, state_source},
    },
};
use std::{num::NonZeroU32, time::Duration};

/// Bits of a worker's name behind which the number of its leader is.
const NAME_BITS: u32 = 20;

/// What the scripts of a run do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ScriptPlan {
    /// None of them attaches.
    pub(super) detached: bool,
    /// One in so many of those that leave a round has not its whole state; 0: all have.
    pub(super) hollow: u64,
    /// Number of equal parts of a step, which they say when they attach.
    pub(super) parts: Option<NonZeroU32>,
}

/// A message to a broker.
#[derive(Debug)]
pub(super) enum BrokerMessage {
    Worker(FromWorker),
    Script(FromScript),
}

/// The run of a seed and its faults.
pub(super) fn of_seed(seed: u64) -> (RunPlan, Vec<PlannedFault>) {
    let mut random = Random::new(seed ^ 0x005C_2197);
    let detached = random.one_in(4);
    let hollow = random.pick(&[0, 0, 1, 2, 5]);
    let plan = RunPlan {
        sharding: Sharding::Replicated,
        in_memory: false,
        scripts: Some(ScriptPlan { detached, hollow, parts: None }),
        ..RunPlan::of(&mut random)
    };
    let plan = RunPlan { scripts: Some(ScriptPlan { detached, hollow, parts: parts_of(seed, &plan) }), ..plan };
    let mut faults = plan_faults(&mut random, &plan);
    // Code 0 says that its work is done. Nobody notices that a program hangs that says nothing of itself.
    let hangs =
        |fault: &Fault| matches!(fault, Fault::HangWorker(..) | Fault::Unkillable(..) | Fault::Trap(_, Trap::Hang(_)));
    faults.retain(|planned| !(matches!(planned.fault, Fault::ExitEarly(_)) || detached && hangs(&planned.fault)));
    if !detached && random.one_in(2) {
        let at = random.time(Duration::ZERO, plan.duration());
        faults.push(PlannedFault { at, fault: Fault::DetachScript(random.below(1 << 20)) });
    }
    let last = faults.iter().map(|planned| planned.at + planned.fault.time()).max().unwrap_or_default();
    faults.push(PlannedFault { at: last + Duration::from_secs(20), fault: Fault::Relief });
    faults.extend(plan_sick_devices(&mut random, &plan));
    (plan, faults)
}

/// Returns the parts of a seed: mostly a multiple of the world that is wanted.
fn parts_of(seed: u64, plan: &RunPlan) -> Option<NonZeroU32> {
    let mut random = Random::new(seed ^ 0x0000_9A27);
    let parts = match random.below(8) {
        0..3 => return None,
        3 => random.pick(&[8, 12, 24, 48]),
        4..6 => u64::from(plan.workers) * plan.nodes as u64 * random.pick(&[1, 2, 4]),
        _ => u64::from(plan.workers) * (1..=plan.nodes as u64).product::<u64>().min(1 << 24),
    };
    u32::try_from(parts).ok().and_then(NonZeroU32::new)
}

/// Returns what a script says where a worker of ours says this; `None`: nothing.
pub(super) fn as_script(process: &Process, message: &FromWorker) -> Option<FromScript> {
    match message {
        FromWorker::Hello { worker, pid, .. } => {
            Some(FromScript::Attach { protocol: SCRIPT_PROTOCOL, worker: *worker, pid: *pid })
        }
        FromWorker::Ready { .. } => Some(FromScript::Ready { round: process.seat()?.round, step: process.step() }),
        FromWorker::Halted { round, step, kept } => {
            Some(FromScript::Halted { round: *round, step: *step, whole: *kept })
        }
        FromWorker::Stepped { step, .. } => Some(FromScript::Progress { round: process.seat()?.round, step: *step }),
        FromWorker::Failed { error } => Some(FromScript::Failed { error: error.clone() }),
        FromWorker::BatchParts { parts } => Some(FromScript::Parts { parts: *parts }),
        _ => None,
    }
}

/// The seat of a script that reads it from its environment.
fn seat_of(worker: WorkerId, facts: SeatFacts) -> Assignment {
    // Names of workers say which leader started them.
    let attempt = format!("{}-{}", facts.round, worker.0 >> NAME_BITS);
    Assignment {
        round: facts.round,
        rank: facts.rank,
        world_size: facts.world,
        local_rank: facts.local_rank,
        local_world_size: facts.local_world,
        store_host: String::new(),
        store_port: 0,
        device: "cpu".to_owned(),
        threads: 1,
        run_dir: super::run_plan::RUN_DIR.into(),
        kernels: Quarantined::default(),
        split: 1,
        task: WorkerTask::Script { attempt, source: None },
    }
}

impl World {
    pub(super) fn are_scripts(&self) -> bool {
        self.plan.scripts.is_some()
    }

    /// A script that never attaches meets the others as its environment says. Without a seat there it waits for ever.
    pub(super) fn begin_detached(&mut self, pid: Pid) {
        let Some(process) = self.processes.get(&pid) else { return };
        let worker = process.worker;
        let Some(facts) = process.facts else { return self.enter_stage(pid, Stage::Warming, Phase::Load) };
        self.enter_stage(pid, Stage::Preparing, Phase::Load);
        if let Some(process) = self.processes.get_mut(&pid) {
            process.take(Box::new(seat_of(worker, facts)));
        }
        let delay = self.random.time(self.plan.load_time / 2, self.plan.load_time);
        self.step_later(pid, delay, ProcessStep::Prepared);
    }

    /// A script says something that is none of the language: it is not attached any more, and goes on.
    pub(super) fn detach_script(&mut self, pid: Pid) {
        let Some(process) = self.processes.get_mut(&pid).filter(|process| process.works()) else { return };
        let agent = process.agent;
        let Some(connection) = process.connection.take() else { return };
        let Some(known) = self.agents.get_mut(&agent) else { return };
        known.broker.close(connection);
        let error = Some("frame of 5 bytes is not a message of this protocol".to_owned());
        let effects = known.broker.roster.on_closed(ConnectionId(connection.0), error);
        self.apply_roster(agent, effects);
    }

    /// Whether the state of a script is not whole when it leaves a round.
    pub(super) fn is_hollow(&mut self) -> bool {
        let hollow = self.plan.scripts.map_or(0, |scripts| scripts.hollow);
        hollow > 0 && self.random.one_in(hollow)
    }

    /// A script is to end: at once where it does no steps, else behind the present step.
    pub(super) fn stop_script(&mut self, pid: Pid) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        process.stop = true;
        let group = if let Stage::InGroup(key) = &process.stage { self.groups.get(key) } else { None };
        if !group.is_some_and(Group::does_steps) {
            self.save_script(pid);
        }
    }

    /// A script saves its state and ends.
    pub(super) fn save_script(&mut self, pid: Pid) {
        let Some(process) = self.processes.get(&pid).filter(|process| process.works()) else { return };
        if process.stage == Stage::Ending {
            return;
        }
        self.disk.furthest = self.disk.furthest.max(process.state.map(|state| state.step));
        self.leave_group(pid);
        self.finish_process(pid, true);
    }

    /// The state with which a round of scripts begins is that of the rank that they were told.
    pub(super) fn check_source(&mut self, members: &[Pid], held: Option<u64>, round: u64) {
        let seats: Vec<Assignment> =
            members.iter().filter_map(|pid| self.processes.get(pid)?.seat().cloned()).collect();
        let sources: Vec<_> = seats.iter().map(state_source).collect();
        let source = sources.first().copied().flatten();
        if sources.iter().any(|other| *other != source) {
            self.violation("4", format!("the scripts of round {round} are told of different sources: {sources:?}"));
        }
        let holder = source.and_then(|source| seats.iter().position(|seat| seat.rank == source.rank));
        let holds = holder.and_then(|at| self.processes.get(&members[at])?.state).map(|state| state.step);
        if held != source.map(|source| source.step) || holds != held {
            self.violation("8", format!("round {round} of scripts begins from {source:?}, its ranks hold {held:?}"));
        }
    }

    /// Whether a failure restarts all scripts: one that is there has not attached, as far as the leader knows, or has finished.
    pub(super) fn all_scripts_restart(&self, view: &LeaderView) -> bool {
        // A successor finds workers to which it gave no seats.
        let is_seated =
            |process: &Process| view.seats.contains_key(&process.worker) || (view.seats.is_empty() && process.alive);
        let is_apart = |process: &Process| {
            let has_finished = process.stage == Stage::Ending || process.ended_by == Some(EndedBy::Itself);
            has_finished || process.connection.is_none() || !view.knows_connected(process.worker)
        };
        self.are_scripts() && self.processes.values().filter(|process| is_seated(process)).any(is_apart)
    }
}
