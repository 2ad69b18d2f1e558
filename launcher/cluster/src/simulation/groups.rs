//! The workers of a round together: they meet, share the state of training, do steps in lock step, save, and break when one of them dies.

use super::{
    processes::{Hang, Pid, ProcessStep, Stage, TrainingState, Trap, TrapPoint},
    run_plan::RUN_DIR,
    world::{Event, World},
};
use enn_common::{
    checkpoint::{layout::BoxOf, name, table::ShardTable},
    event::{EpochReport, StepTimes},
    metrics::Metrics,
    wire::{
        control::Phase,
        message::{Assignment, FromWorker, StagedShard, WorkerTask},
    },
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    time::Duration,
};

/// A round as its workers know it: the key prefix in the store under which they meet.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GroupKey {
    pub(super) round: u64,
    pub(super) attempt: String,
}

/// One part of the state of so many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StatePart {
    pub(super) index: u32,
    pub(super) of: u32,
}

/// What a group does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GroupStage {
    Meeting,
    /// All are there: the state of training goes to those who lack it.
    Forming,
    /// Members say one after another that they are ready.
    Readying,
    Stepping,
    /// It waits until its members have written their shards; then it goes on, or ends.
    Writing(AfterSave),
    Over,
}

/// What follows a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AfterSave {
    GoOn,
    /// The run is done, or was stopped.
    End {
        stopped: bool,
    },
}

/// Members of a round.
#[derive(Debug)]
pub(super) struct Group {
    world: u32,
    resume: Option<PathBuf>,
    /// It only saves what its members have.
    save_only: bool,
    pub(super) members: BTreeMap<u32, Pid>,
    stage: GroupStage,
    pub(super) broken: bool,
    /// It waits for a member that hangs.
    stalled: bool,
    /// Counts what was scheduled, so that what was given up is known.
    turn: u64,
    step: u64,
    /// Step at which it began.
    base: u64,
    saved: Option<u64>,
    /// Members that have not written their shard of the present checkpoint.
    writing: BTreeSet<u32>,
}

impl Group {
    /// Whether its members go on to the end of a step when they are to end.
    pub(super) fn does_steps(&self) -> bool {
        !self.broken && matches!(self.stage, GroupStage::Readying | GroupStage::Stepping | GroupStage::Over)
    }

    fn new(seat: &Assignment, resume: Option<PathBuf>) -> Self {
        Self {
            world: seat.world_size,
            resume,
            save_only: World::saves_only(seat),
            members: BTreeMap::new(),
            stage: GroupStage::Meeting,
            broken: false,
            stalled: false,
            turn: 0,
            step: 0,
            base: 0,
            saved: None,
            writing: BTreeSet::new(),
        }
    }
}

/// Attempt and checkpoint of an assignment.
pub(super) fn attempt_of(seat: &Assignment) -> (String, Option<PathBuf>) {
    match &seat.task {
        WorkerTask::Train { resume, attempt, .. } => (attempt.clone(), resume.clone()),
        WorkerTask::Save { attempt } | WorkerTask::Init { attempt, .. } | WorkerTask::Script { attempt, .. } => {
            (attempt.clone(), None)
        }
        WorkerTask::Predict { .. } => (String::new(), None),
    }
}

impl World {
    /// A worker meets the others of its round.
    pub(super) fn join_group(&mut self, pid: Pid) {
        let Some(seat) = self.processes.get(&pid).and_then(|process| process.seat().cloned()) else { return };
        let (attempt, resume) = attempt_of(&seat);
        let key = GroupKey { round: seat.round, attempt };
        let group = self.groups.entry(key.clone()).or_insert_with(|| Group::new(&seat, resume.clone()));
        let agrees = group.world == seat.world_size && group.resume == resume;
        let is_full = group.members.insert(seat.rank, pid).is_some_and(|other| other != pid);
        let there = group.members.len();
        let found = (group.world, group.resume.clone());
        if let Some(process) = self.processes.get_mut(&pid) {
            process.stage = Stage::InGroup(key.clone());
        }
        if !agrees {
            let expected = (seat.world_size, &resume);
            self.violation(
                "4",
                format!("assignments of round {} do not agree: {found:?} and {expected:?}", seat.round),
            );
        }
        if is_full {
            self.violation("2", format!("two processes have rank {} of round {}", seat.rank, seat.round));
        }
        if there == seat.world_size as usize {
            let delay = self.random.time(Duration::from_millis(5), Duration::from_millis(200));
            self.group_later(&key, delay, GroupStage::Forming);
        }
    }

    fn group_later(&mut self, key: &GroupKey, delay: Duration, stage: GroupStage) {
        let Some(group) = self.groups.get_mut(key) else { return };
        group.stage = stage;
        group.turn += 1;
        let turn = group.turn;
        self.at(self.now + delay, Event::Group { key: key.clone(), turn });
    }

    /// What a group scheduled is due.
    pub(super) fn group_step(&mut self, key: &GroupKey, turn: u64) {
        let Some(group) = self.groups.get_mut(key) else { return };
        if group.turn != turn || group.broken {
            return;
        }
        let works = |pid: &Pid| self.processes.get(pid).is_some_and(|process| process.works());
        if !group.members.values().all(works) {
            group.stalled = true;
            self.wait_in_collective(key);
            return;
        }
        match group.stage {
            GroupStage::Meeting | GroupStage::Over | GroupStage::Writing(_) => {}
            GroupStage::Forming => self.form(key),
            GroupStage::Readying => self.ready(key),
            GroupStage::Stepping => self.do_step(key),
        }
    }

    /// Those who work wait for the one that does not.
    fn wait_in_collective(&mut self, key: &GroupKey) {
        let now = self.now;
        for pid in self.members_of(key) {
            let Some(process) = self.processes.get_mut(&pid) else { continue };
            if process.works() && process.phase != Phase::Collective {
                process.phase = Phase::Collective;
                process.progress_at = now;
            }
        }
    }

    pub(super) fn members_of(&self, key: &GroupKey) -> Vec<Pid> {
        self.groups.get(key).map(|group| group.members.values().copied().collect()).unwrap_or_default()
    }

    /// A member that was stopped goes on.
    pub(super) fn group_resumes(&mut self, pid: Pid) {
        let Some(Stage::InGroup(key)) = self.processes.get(&pid).map(|process| process.stage.clone()) else { return };
        let Some(group) = self.groups.get_mut(&key) else { return };
        if std::mem::take(&mut group.stalled) && !group.broken {
            let stage = group.stage;
            self.group_later(&key, Duration::from_millis(1), stage);
        } else if group.broken {
            self.feel_break(pid, &key);
        }
    }

    /// All members are there: they agree on the state of training.
    fn form(&mut self, key: &GroupKey) {
        let members = self.members_of(key);
        if members.iter().any(|pid| self.springs(TrapPoint::BeforeReady, *pid)) {
            self.groups.entry(key.clone()).and_modify(|group| group.stalled = true);
            return;
        }
        let Some(group) = self.groups.get(key) else { return };
        let resume = group.resume.clone();
        let save_only = group.save_only;
        let held = self.whole_step_of(&members);
        if self.are_scripts() {
            self.check_source(&members, held, key.round);
        }
        let begun = match (held, &resume) {
            (Some(step), _) => step,
            (None, Some(path)) => match self.disk.readable(path) {
                Ok(step) => step,
                Err(file) => return self.find_damage(&members, path, file),
            },
            (None, None) => 0,
        };
        if save_only && held.is_none() {
            let round = key.round;
            self.violation("second list", format!("round {round} is to save a state that its workers do not hold"));
        }
        self.round_formed(key, begun, held.is_some());
        let Some(group) = self.groups.get_mut(key) else { return };
        group.step = begun;
        group.base = begun;
        let ranks: Vec<(u32, Pid)> = group.members.iter().map(|(rank, pid)| (*rank, *pid)).collect();
        let source = ranks.iter().find(|(_, pid)| self.processes[pid].step() == begun).map_or(0, |(rank, _)| *rank);
        for (_, pid) in &ranks {
            let had = self.processes.get(pid).and_then(|process| process.state);
            if held.is_some() && had.is_none_or(|state| state.step != begun) {
                self.say(*pid, FromWorker::StateReceived { step: begun, from: source, bytes: 1, seconds: 0.1 });
            }
        }
        let delay = self.random.up_to_ms(200);
        self.group_later(key, delay, GroupStage::Readying);
    }

    /// The furthest step of which these processes hold the whole state.
    pub(super) fn whole_step_of(&self, pids: &[Pid]) -> Option<u64> {
        let held: Vec<TrainingState> = pids.iter().filter_map(|pid| self.processes.get(pid)?.state).collect();
        whole_step(&held)
    }

    fn find_damage(&mut self, members: &[Pid], path: &Path, file: Option<PathBuf>) {
        for pid in members {
            let path = path.to_owned();
            let file = file.clone();
            self.say(*pid, FromWorker::CheckpointDamaged { path, file });
            self.fail_process(*pid, "the checkpoint is damaged".to_owned());
        }
    }

    /// Every member is ready for its first step.
    fn ready(&mut self, key: &GroupKey) {
        let Some(group) = self.groups.get(key) else { return };
        let world = group.world;
        let step = group.step;
        let save_only = group.save_only;
        let ranks: Vec<(u32, Pid)> = group.members.iter().map(|(rank, pid)| (*rank, *pid)).collect();
        for (rank, pid) in &ranks {
            let part = self.plan.sharding.share(*rank, world).map(|(index, of)| StatePart { index, of });
            let device = "cpu".to_owned();
            let backend = "gloo".to_owned();
            self.say(*pid, FromWorker::Ready { device, backend, libtorch: "2.11".to_owned() });
            let now = self.now;
            if let Some(process) = self.processes.get_mut(pid) {
                process.state = Some(TrainingState { step, part });
                process.has_device = true;
                process.ready_in = Some(key.round);
                process.phase = Phase::Compute;
                process.progress_at = now;
            }
        }
        if save_only {
            return self.save(key, AfterSave::End { stopped: true });
        }
        if step == 0
            && let Some((_, pid)) = ranks.first()
        {
            let program_hash = "h".to_owned();
            let steps_total = self.plan.steps;
            let steps_per_epoch = self.plan.epoch_steps;
            let message =
                FromWorker::ModelBuilt { parameters: 1, program_hash, batch: 1, steps_per_epoch, steps_total };
            self.say(*pid, message);
        }
        if step >= self.plan.steps {
            return self.end_of_run(key);
        }
        let delay = self.step_delay(key);
        self.group_later(key, delay, GroupStage::Stepping);
    }

    /// Time of the next step: that of its slowest member.
    fn step_delay(&mut self, key: &GroupKey) -> Duration {
        let members = self.members_of(key);
        let slowness = |pid: &Pid| self.processes.get(pid).map_or(1, |process| process.slowness);
        let slowest = members.iter().map(slowness).max().unwrap_or(1);
        let own = self.plan.step_time;
        for pid in &members {
            if let Some(process) = self.processes.get_mut(pid) {
                process.waited += own * slowest.saturating_sub(process.slowness);
            }
        }
        own * slowest + self.random.up_to_ms(20)
    }

    /// All members did one more step.
    fn do_step(&mut self, key: &GroupKey) {
        let now = self.now;
        let members = self.members_of(key);
        let fallen: Vec<Pid> = members
            .iter()
            .copied()
            .filter(|pid| self.springs(TrapPoint::InStep, *pid) || self.device_fails(*pid))
            .collect();
        if !fallen.is_empty() {
            self.groups.entry(key.clone()).and_modify(|group| group.stalled = true);
            return self.wait_in_collective(key);
        }
        let Some(group) = self.groups.get_mut(key) else { return };
        group.step += 1;
        let step = group.step;
        for pid in &members {
            let Some(process) = self.processes.get_mut(pid) else { continue };
            if let Some(state) = &mut process.state {
                state.step = step;
            }
            process.phase = Phase::Compute;
            process.progress_at = now;
        }
        self.step_done(key, step);
        let epoch = step.div_ceil(self.plan.epoch_steps);
        if let Some(first) = members.first() {
            self.say(
                *first,
                FromWorker::Stepped { epoch, step, loss: 1.0, lr: 0.1, grad_norm: 1.0, samples_per_s: 1.0 },
            );
            if step.is_multiple_of(self.plan.epoch_steps) || step == self.plan.steps {
                self.say(*first, FromWorker::EpochEnded(Box::new(report(epoch, step))));
            }
        }
        self.after_step(key, step);
    }

    fn after_step(&mut self, key: &GroupKey, step: u64) {
        let members = self.members_of(key);
        let flag = |wanted: fn(&super::processes::Process) -> bool| {
            members.iter().any(|pid| self.processes.get(pid).is_some_and(wanted))
        };
        let stop = flag(|process| process.stop);
        let regroup = flag(|process| process.regroup);
        if step >= self.plan.steps {
            self.end_of_run(key);
        } else if stop {
            self.save(key, AfterSave::End { stopped: true });
        } else if regroup {
            self.leave_together(key);
        } else if step.is_multiple_of(self.plan.save_steps) {
            self.save(key, AfterSave::GoOn);
        } else {
            let delay = self.step_delay(key);
            self.group_later(key, delay, GroupStage::Stepping);
        }
    }

    /// All members leave the round at the same step.
    fn leave_together(&mut self, key: &GroupKey) {
        let members = self.members_of(key);
        self.groups.entry(key.clone()).and_modify(|group| group.stage = GroupStage::Over);
        for pid in members {
            self.leave_group(pid);
            // All parts are put together before they leave.
            if let Some(state) = self.processes.get_mut(&pid).and_then(|process| process.state.as_mut()) {
                state.part = None;
            }
            self.enter_stage(pid, Stage::Leaving(key.round), Phase::Rendezvous);
            let delay = self.random.up_to_ms(20);
            self.step_later(pid, delay, ProcessStep::Left(key.round));
        }
    }

    fn end_of_run(&mut self, key: &GroupKey) {
        self.save(key, AfterSave::End { stopped: false });
    }

    /// Every member saves its shard.
    fn save(&mut self, key: &GroupKey, then: AfterSave) {
        if self.are_scripts() {
            return self.saved(key, then);
        }
        let Some(group) = self.groups.get_mut(key) else { return };
        let step = group.step;
        if group.saved == Some(step) {
            return self.saved(key, then);
        }
        group.saved = Some(step);
        group.stage = GroupStage::Writing(then);
        group.turn += 1;
        let ranks: Vec<(u32, Pid)> = group.members.iter().map(|(rank, pid)| (*rank, *pid)).collect();
        if self.plan.in_memory {
            for (rank, pid) in ranks {
                self.save_in_memory(key, pid, rank, step, then);
            }
            return self.saved(key, then);
        }
        group.writing = ranks.iter().map(|(rank, _)| *rank).collect();
        let now = self.now;
        for (rank, pid) in ranks {
            if let Some(process) = self.processes.get_mut(&pid) {
                process.phase = Phase::Save;
                process.progress_at = now;
            }
            let at = self.disk_ready_at();
            self.at(at, Event::ShardDone { key: key.clone(), rank, step });
        }
    }

    /// A snapshot is left in memory for the node agent.
    fn save_in_memory(&mut self, key: &GroupKey, pid: Pid, rank: u32, step: u64, then: AfterSave) {
        let must = then != AfterSave::GoOn;
        let Some(process) = self.processes.get_mut(&pid) else { return };
        if !process.has_room_for_snapshot() && !must {
            let error = "it was left out because two before it are still being written".to_owned();
            return self.say(pid, FromWorker::ShardFailed { step, error });
        }
        process.last_ticket += 1;
        let ticket = process.last_ticket;
        process.tickets.insert(ticket);
        let dir = being_written(step, &key.attempt);
        let epoch = step.div_ceil(self.plan.epoch_steps);
        let metric = (rank == 0).then_some(1.0);
        let boxes: Vec<BoxOf> = Vec::new();
        let shard = StagedShard { step, epoch, dir, metric, ticket, at: 0, boxes, blake3: false, blocked: 0.0, must };
        self.say(pid, FromWorker::ShardStaged(Box::new(shard)));
    }

    /// A member's shard is on disk, or is not.
    pub(super) fn shard_done(&mut self, key: &GroupKey, rank: u32, step: u64) {
        if let Some(until) = self.disk.hung_until.filter(|until| *until > self.now) {
            return self.at(until, Event::ShardDone { key: key.clone(), rank, step });
        }
        let Some(group) = self.groups.get_mut(key) else { return };
        let Some(pid) = group.members.get(&rank).copied() else { return };
        let works = self.processes.get(&pid).is_some_and(|process| process.works());
        if !works || !group.writing.remove(&rank) {
            return;
        }
        let all_done = group.writing.is_empty();
        let stage = group.stage;
        let epoch = step.div_ceil(self.plan.epoch_steps);
        let dir = being_written(step, &key.attempt);
        let metric = (rank == 0).then_some(1.0);
        if self.disk.is_full(self.now) {
            self.say(pid, FromWorker::ShardFailed { step, error: "the disk is full".to_owned() });
        } else {
            self.disk.write_shard(&key.attempt, step, rank);
            let table = table(rank);
            self.say(pid, FromWorker::ShardWritten { step, epoch, dir, metric, table, blocked: 0.1 });
        }
        if let (GroupStage::Writing(then), true, false) = (stage, all_done, self.groups[key].broken) {
            self.saved(key, then);
        }
    }

    /// The group goes on after a checkpoint.
    fn saved(&mut self, key: &GroupKey, then: AfterSave) {
        match then {
            AfterSave::GoOn => {
                let delay = self.step_delay(key);
                self.group_later(key, delay, GroupStage::Stepping);
            }
            AfterSave::End { stopped } => self.end_group(key, stopped),
        }
    }

    /// The work of the group is done.
    fn end_group(&mut self, key: &GroupKey, stopped: bool) {
        let Some(group) = self.groups.get_mut(key) else { return };
        group.stage = GroupStage::Over;
        let step = group.step;
        let members: Vec<Pid> = group.members.values().copied().collect();
        let machines: BTreeSet<_> = members.iter().map(|pid| self.processes[pid].machine).collect();
        if let (Some(first), false) = (members.first(), stopped) {
            let split = BTreeMap::from([("test".to_owned(), Metrics::default())]);
            let epoch = step.div_ceil(self.plan.epoch_steps);
            self.say(*first, FromWorker::Trained { epoch, step, stopped_early: false, split, samples_per_s: 1.0 });
        }
        if self.are_scripts() {
            self.disk.furthest = self.disk.furthest.max(Some(step));
        }
        for pid in members {
            self.leave_group(pid);
            if stopped && machines.len() > 1 && !self.are_scripts() {
                self.await_commit(pid, step);
            } else {
                self.finish_process(pid, stopped);
            }
        }
    }

    /// A process is no member of its group any more; that breaks nothing by itself.
    pub(super) fn leave_group(&mut self, pid: Pid) {
        let Some(Stage::InGroup(key)) = self.processes.get(&pid).map(|process| process.stage.clone()) else { return };
        let Some(group) = self.groups.get_mut(&key) else { return };
        group.members.retain(|_, member| *member != pid);
        let over = group.stage == GroupStage::Over;
        if group.members.is_empty() {
            self.groups.remove(&key);
        } else if !over {
            self.break_group(&key);
        }
    }

    /// The group of a process that ended breaks.
    pub(super) fn break_group_of(&mut self, pid: Pid) {
        if let Some(Stage::InGroup(key)) = self.processes.get(&pid).map(|process| process.stage.clone()) {
            self.break_group(&key);
        }
    }

    /// The collectives of a group end with an error.
    pub(super) fn break_group(&mut self, key: &GroupKey) {
        let Some(group) = self.groups.get_mut(key) else { return };
        if std::mem::replace(&mut group.broken, true) {
            return;
        }
        let stage = group.stage;
        let step = group.step;
        let members: Vec<Pid> = group.members.values().copied().collect();
        // Some may have done the step whose end the others did not see.
        let ragged = stage == GroupStage::Stepping && !self.groups[key].stalled && self.random.one_in(3);
        for pid in members {
            let ahead = ragged && self.random.one_in(2);
            if let Some(state) = self.processes.get_mut(&pid).and_then(|process| process.state.as_mut())
                && ahead
                && state.step == step
            {
                state.step += 1;
                self.step_done(key, step + 1);
            }
            if stage != GroupStage::Meeting && self.processes.get(&pid).is_some_and(|process| process.works()) {
                self.feel_break(pid, key);
            }
        }
    }

    /// A rank runs out of memory in a step: it changed nothing, says so, and waits for the end of the round.
    pub(super) fn out_of_memory(&mut self, pid: Pid) {
        let Some(process) = self.processes.get(&pid).filter(|process| process.works()) else { return };
        let Stage::InGroup(key) = process.stage.clone() else { return };
        let step = process.step();
        let Some(group) = self.groups.get_mut(&key).filter(|group| group.stage == GroupStage::Stepping) else { return };
        if group.broken {
            return;
        }
        group.broken = true;
        let members: Vec<Pid> = group.members.values().copied().collect();
        self.say(pid, FromWorker::OutOfMemory { step, error: "no memory".to_owned() });
        members.into_iter().for_each(|pid| self.feel_break(pid, &key));
    }

    /// Connections between the workers of a round are reset, though all of them live.
    pub(super) fn reset_group(&mut self, pid: Pid) {
        let Some(Stage::InGroup(key)) = self.processes.get(&pid).map(|process| process.stage.clone()) else { return };
        if self.groups.get(&key).is_some_and(|group| group.stage == GroupStage::Stepping) {
            self.break_group(&key);
        }
    }

    /// Lets a worker misbehave at once.
    pub(super) fn misbehave(&mut self, pid: Pid, trap: Trap) {
        match trap {
            Trap::Hang(hang) => self.hang_process(pid, hang, None),
            Trap::Die => self.kill_from_outside(pid),
        }
    }

    /// Stops a worker as by SIGSTOP for a while.
    pub(super) fn stop_worker(&mut self, pid: Pid, time: Duration) {
        self.hang_process(pid, Hang::Whole, Some(time));
    }
}

/// The directory in which the ranks of an attempt write the checkpoint of a step.
pub(super) fn being_written(step: u64, attempt: &str) -> PathBuf {
    Path::new(RUN_DIR).join("checkpoints").join(name::temporary(step, attempt))
}

/// What a rank says of its shard.
pub(super) fn table(rank: u32) -> ShardTable {
    ShardTable { file: name::shard(rank), bytes: 1, ..ShardTable::default() }
}

/// The furthest step of which these states are the whole.
pub(super) fn whole_step(held: &[TrainingState]) -> Option<u64> {
    let steps: BTreeSet<u64> = held.iter().map(|state| state.step).collect();
    steps.into_iter().rev().find(|step| {
        let there = || held.iter().filter(|state| state.step == *step);
        let whole = there().any(|state| state.part.is_none());
        whole
            || there().filter_map(|state| state.part).any(|part| {
                (0..part.of).all(|index| there().any(|state| state.part == Some(StatePart { index, of: part.of })))
            })
    })
}

fn report(epoch: u64, step: u64) -> EpochReport {
    EpochReport {
        epoch,
        step,
        train_loss: 1.0,
        val: Metrics::default(),
        best: false,
        lr: 0.1,
        grad_norm: 1.0,
        gate_mean: 0.0,
        reactivity: 0.0,
        step_ms: StepTimes::default(),
        samples_per_s: 1.0,
        skipped: 0,
        part: 1.0,
    }
}
