//! Worker processes: what they do from their start to their end, and how they misbehave.

use super::{
    broker::LocalConnection,
    groups::{GroupKey, StatePart},
    links::Machine,
    programs::ProgramSeat,
    scripts::{BrokerMessage, as_script},
    world::{Event, Time, World},
};
use enn_common::{
    id::WorkerId,
    wire::{
        control::{Phase, SNAPSHOTS_MAX},
        message::{Assignment, FromWorker, PROTOCOL, Standby, ToWorker, WorkerTask},
        node_agent::{FirstLaunch, SeatFacts, WorkerEvidence, WorkerExit, WorkerFlag, WorkerProgress},
    },
};
use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

/// Number of a process. None is used twice.
pub(super) type Pid = u32;

/// Time in which a worker leaves a round of which it is told that it is over.
const ABORT_MS: u64 = 200;
/// Time that a worker waits for the end of a round whose collectives broke.
const BROKEN_WAIT: Duration = Duration::from_secs(10);

const SIGNAL_KILL: i32 = 9;
const SIGNAL_SEGV: i32 = 11;
const SIGNAL_TERM: i32 = 15;

/// What the main thread of a worker does.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Stage {
    /// The process loads libraries and has not connected.
    Starting,
    /// It waits for a message that tells it what to do.
    Idle,
    /// It loads what it can without a seat.
    Warming,
    /// It entered a round and loads what it needs there.
    Preparing,
    /// It waits for the other ranks, or works with them.
    InGroup(GroupKey),
    /// It leaves this round.
    Leaving(u64),
    /// Its work is done: it waits for what becomes of the checkpoint of this step.
    Saving(u64),
    /// It is about to exit.
    Ending,
}

/// Which part of a process does nothing any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hang {
    /// The main thread: the process still hears that it is to end.
    Main,
    /// All of it, as after SIGSTOP.
    Whole,
}

/// A point at which the next worker that comes there misbehaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TrapPoint {
    BeforeConnected,
    BeforeReady,
    InStep,
    InHalt,
}

/// What becomes of a worker at such a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trap {
    Hang(Hang),
    Die,
}

/// State of training that a worker holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TrainingState {
    pub(super) step: u64,
    /// Its part of the state; `None`: all of it.
    pub(super) part: Option<StatePart>,
}

/// One worker process.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) pid: Pid,
    pub(super) worker: WorkerId,
    pub(super) machine: Machine,
    /// The agent that started it, by its number.
    pub(super) agent: u64,
    pub(super) connection: Option<LocalConnection>,
    pub(super) stage: Stage,
    pub(super) alive: bool,
    /// Its seat, if it is a program without a contract of ours, and the code with which it exited.
    pub(super) program: Option<ProgramSeat>,
    pub(super) exit_code: Option<i32>,
    pub(super) hang: Option<Hang>,
    /// SIGKILL does not end it before then.
    pub(super) unkillable_until: Option<Time>,
    /// A fatal signal came while it was unkillable or stopped.
    pending_signal: Option<i32>,
    pub(super) state: Option<TrainingState>,
    /// It was ready once: it holds memory of its device.
    pub(super) has_device: bool,
    /// The round in which it was ready last.
    pub(super) ready_in: Option<u64>,
    seat: Option<Box<Assignment>>,
    /// Seat that its environment says.
    pub(super) facts: Option<SeatFacts>,
    orders: VecDeque<ToWorker>,
    /// Rounds up to this one are over, as far as it was told.
    pub(super) over: Option<u64>,
    /// When it was told that the round is over which it has not left since.
    pub(super) over_at: Option<Time>,
    /// Its agent was told to end it.
    pub(super) given_up: bool,
    /// A leader has ordered its end. Another leader need not follow.
    pub(super) ordered_away: bool,
    /// Its agent must have sent SIGKILL by then.
    pub(super) kill_by: Option<Time>,
    pub(super) stop: bool,
    pub(super) regroup: bool,
    prepared: bool,
    /// When the last of its messages arrives at its broker.
    pub(super) said_until: Time,
    pub(super) phase: Phase,
    pub(super) waited: Duration,
    pub(super) progress_at: Time,
    /// It computes so many times as long as the others.
    pub(super) slowness: u32,
    /// Snapshots in memory that the node agent has not given back.
    pub(super) tickets: BTreeSet<u64>,
    pub(super) last_ticket: u64,
    first_launch: Option<FirstLaunch>,
    /// The device that failed when it had it.
    pub(super) failed_device: Option<u32>,
    /// Who ended it, for the checks.
    pub(super) ended_by: Option<EndedBy>,
    /// Counts what its main thread began, so that a step of something that was given up is known.
    pub(super) turn: u64,
}

/// Who ended a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EndedBy {
    Itself,
    Fault,
    Agent,
    Machine,
}

/// Steps of a worker's life that take time.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ProcessStep {
    Connect,
    Warmed,
    Prepared,
    Left(u64),
    /// The collectives broke, and nobody ended the round since.
    BrokenFor(GroupKey),
    /// The wait for the last checkpoint is over.
    SaveWaitOver(u64),
    Exit(i32),
    Thaw,
    ProgramReady,
    ProgramGoesOn,
}

impl Process {
    /// Returns whether nobody counts on it any more.
    pub(super) fn is_given_up(&self) -> bool {
        self.given_up || self.ordered_away
    }

    pub(super) fn new(pid: Pid, worker: WorkerId, machine: Machine, agent: u64, now: Time) -> Self {
        Self {
            pid,
            worker,
            machine,
            agent,
            connection: None,
            stage: Stage::Starting,
            alive: true,
            program: None,
            exit_code: None,
            hang: None,
            unkillable_until: None,
            pending_signal: None,
            state: None,
            has_device: false,
            ready_in: None,
            seat: None,
            facts: None,
            orders: VecDeque::new(),
            over: None,
            over_at: None,
            given_up: false,
            ordered_away: false,
            kill_by: None,
            stop: false,
            regroup: false,
            prepared: false,
            said_until: now,
            phase: Phase::Boot,
            waited: Duration::ZERO,
            progress_at: now,
            slowness: 1,
            tickets: BTreeSet::new(),
            last_ticket: 0,
            first_launch: None,
            failed_device: None,
            ended_by: None,
            turn: 0,
        }
    }

    /// Whether its main thread does what it is to.
    pub(super) fn works(&self) -> bool {
        self.alive && self.hang.is_none()
    }

    /// Whether it hears its broker.
    fn listens(&self) -> bool {
        self.alive && self.hang != Some(Hang::Whole)
    }

    pub(super) fn seat(&self) -> Option<&Assignment> {
        self.seat.as_deref()
    }

    pub(super) fn take(&mut self, seat: Box<Assignment>) {
        self.seat = Some(seat);
    }

    pub(super) fn step(&self) -> u64 {
        self.state.map_or(0, |state| state.step)
    }

    /// The control page as the node agent reads it; a script that does not attach shows nothing.
    pub(super) fn page(&self, now: Time) -> WorkerProgress {
        if self.facts.is_some() && self.connection.is_none() {
            let idle = now.saturating_sub(self.progress_at);
            return WorkerProgress { worker: self.worker, phase: 0, step: 0, waited: Duration::ZERO, idle };
        }
        WorkerProgress {
            worker: self.worker,
            phase: self.phase as u32,
            step: self.step(),
            waited: self.waited,
            idle: now.saturating_sub(self.progress_at),
        }
    }

    fn mark(&mut self, now: Time, phase: Phase) {
        self.phase = phase;
        self.progress_at = now;
    }

    /// Whether the device memory for one more snapshot is there.
    pub(super) fn has_room_for_snapshot(&self) -> bool {
        self.tickets.len() < SNAPSHOTS_MAX
    }
}

impl World {
    /// A process begins its life.
    pub(super) fn start_process(&mut self, process: Process) {
        let pid = process.pid;
        self.processes.insert(pid, process);
        let low = self.plan.connect_time / 2;
        let delay = self.random.time(low, self.plan.connect_time);
        self.step_later(pid, delay, ProcessStep::Connect);
    }

    /// Schedules a step of the process's main thread; it is void when the thread began something else meanwhile.
    pub(super) fn step_later(&mut self, pid: Pid, delay: Duration, step: ProcessStep) {
        let Some(process) = self.processes.get(&pid) else { return };
        let turn = process.turn;
        self.at(self.now + delay, Event::Process { pid, turn, step });
    }

    /// The main thread begins something else.
    pub(super) fn enter_stage(&mut self, pid: Pid, stage: Stage, phase: Phase) {
        let now = self.now;
        if let Some(process) = self.processes.get_mut(&pid) {
            process.turn += 1;
            process.stage = stage;
            process.mark(now, phase);
        }
    }

    /// A step of a worker's life is due.
    pub(super) fn process_step(&mut self, pid: Pid, turn: u64, step: ProcessStep) {
        let now = self.now;
        let Some(process) = self.processes.get_mut(&pid).filter(|process| process.alive) else { return };
        match step {
            ProcessStep::Thaw => return self.thaw(pid),
            ProcessStep::Exit(code) if process.turn == turn => {
                return self.end_process(pid, Some(code), None, EndedBy::Itself);
            }
            _ => {}
        }
        if process.turn != turn {
            return;
        }
        if process.hang.is_some() {
            // It goes on where it was when it is woken.
            let again = self.now + Duration::from_secs(1);
            if process.hang == Some(Hang::Whole) {
                self.at(again, Event::Process { pid, turn, step });
            }
            return;
        }
        match step {
            ProcessStep::Connect => {
                if self.springs(TrapPoint::BeforeConnected, pid) {
                    return;
                }
                if self.plan.scripts.is_some_and(|scripts| scripts.detached) {
                    return self.begin_detached(pid);
                }
                self.enter_stage(pid, Stage::Idle, Phase::Boot);
                self.connect_worker(pid);
            }
            ProcessStep::Warmed => {
                process.prepared = true;
                self.say(pid, FromWorker::Warm);
                self.enter_stage(pid, Stage::Idle, Phase::Boot);
                self.next_order(pid);
            }
            ProcessStep::Prepared => {
                process.prepared = true;
                process.mark(now, Phase::Rendezvous);
                self.join_group(pid);
            }
            ProcessStep::Left(round) => self.halt(pid, round),
            ProcessStep::BrokenFor(key) => {
                let error = format!("a collective of round {} was cut off", key.round);
                self.fail_process(pid, error);
            }
            ProcessStep::SaveWaitOver(_) => self.finish_process(pid, true),
            ProcessStep::ProgramReady => self.program_ready(pid),
            ProcessStep::ProgramGoesOn => self.program_goes_on(pid),
            ProcessStep::Exit(_) | ProcessStep::Thaw => {}
        }
    }

    /// Takes the next order when the main thread has nothing to do.
    fn next_order(&mut self, pid: Pid) {
        let Some(process) = self.processes.get_mut(&pid).filter(|process| process.works()) else { return };
        if process.stage != Stage::Idle {
            return;
        }
        match process.orders.pop_front() {
            Some(ToWorker::Assign(seat)) => self.take_seat(pid, seat),
            Some(ToWorker::Stand(standby)) => self.stand_by(pid, &standby),
            Some(_) | None => {}
        }
    }

    fn stand_by(&mut self, pid: Pid, _standby: &Standby) {
        let delay = self.random.time(self.plan.load_time / 2, self.plan.load_time);
        self.enter_stage(pid, Stage::Warming, Phase::Load);
        self.step_later(pid, delay, ProcessStep::Warmed);
    }

    fn take_seat(&mut self, pid: Pid, seat: Box<Assignment>) {
        let round = seat.round;
        self.say_late(pid);
        self.say(pid, FromWorker::Entered { round });
        self.enter_stage(pid, Stage::Preparing, Phase::Load);
        let Some(process) = self.processes.get_mut(&pid) else { return };
        process.seat = Some(seat);
        process.waited = Duration::ZERO;
        let (low, high) = if process.prepared {
            (Duration::from_millis(5), Duration::from_millis(50))
        } else {
            (self.plan.load_time / 2, self.plan.load_time)
        };
        if process.over.is_some_and(|over| over >= round) {
            return self.leave_round(pid, round);
        }
        let delay = self.random.time(low, high);
        self.step_later(pid, delay, ProcessStep::Prepared);
    }

    /// The worker leaves a round that is over.
    fn leave_round(&mut self, pid: Pid, round: u64) {
        if self.springs(TrapPoint::InHalt, pid) {
            return;
        }
        self.leave_group(pid);
        self.enter_stage(pid, Stage::Leaving(round), Phase::Rendezvous);
        let delay = self.random.up_to_ms(ABORT_MS);
        self.step_later(pid, delay, ProcessStep::Left(round));
    }

    /// The worker stands outside the round and waits for its next seat.
    pub(super) fn halt(&mut self, pid: Pid, round: u64) {
        let Some(process) = self.processes.get(&pid) else { return };
        let step = process.step();
        if self.is_hollow() {
            self.processes.get_mut(&pid).into_iter().for_each(|process| process.state = None);
        }
        let Some(process) = self.processes.get(&pid) else { return };
        let kept = process.state.is_some();
        if let Some(StatePart { index, of }) = process.state.and_then(|state| state.part) {
            self.say(pid, FromWorker::ShareKept { round, share: index, of });
        }
        self.say(pid, FromWorker::Halted { round, step, kept });
        self.enter_stage(pid, Stage::Idle, Phase::Rendezvous);
        let Some(process) = self.processes.get_mut(&pid) else { return };
        process.over_at = None;
        if process.stop && self.are_scripts() {
            return self.save_script(pid);
        }
        self.next_order(pid);
    }

    /// The broker sent a message to a worker.
    pub(super) fn process_hears(&mut self, pid: Pid, message: ToWorker) {
        let Some(process) = self.processes.get_mut(&pid).filter(|process| process.listens()) else { return };
        match message {
            ToWorker::Assign(seat) => {
                self.assigned(pid, &seat);
                if let Some(process) = self.processes.get_mut(&pid) {
                    process.orders.push_back(ToWorker::Assign(seat));
                }
                self.next_order(pid);
            }
            ToWorker::Stand(standby) => {
                process.orders.push_back(ToWorker::Stand(standby));
                self.next_order(pid);
            }
            ToWorker::RoundEnded { round, .. } => self.round_ended(pid, round),
            ToWorker::Committed { step, .. } | ToWorker::Abandoned { step, .. } => {
                if process.stage == Stage::Saving(step) && process.hang.is_none() {
                    self.finish_process(pid, true);
                }
            }
            ToWorker::Dismissed if self.plan.scripts.is_some() => self.stop_script(pid),
            ToWorker::Refused { .. } if self.plan.scripts.is_some() => {}
            ToWorker::Dismissed => self.end_process(pid, Some(0), None, EndedBy::Agent),
            ToWorker::Refused { .. } => self.end_process(pid, Some(1), None, EndedBy::Itself),
            ToWorker::Kernels(_) => {}
            // What it has is older than what others have.
            ToWorker::Parked => process.state = None,
        }
    }

    fn round_ended(&mut self, pid: Pid, round: u64) {
        let now = self.now;
        let Some(process) = self.processes.get_mut(&pid) else { return };
        process.over = process.over.max(Some(round));
        process.over_at = process.over_at.or(Some(now));
        if process.hang.is_some() {
            return;
        }
        let seated = process.seat.as_ref().is_some_and(|seat| seat.round <= round);
        match &process.stage {
            Stage::Preparing | Stage::InGroup(_) | Stage::Saving(_) if seated => self.leave_round(pid, round),
            _ => {}
        }
    }

    /// A worker is given a seat: it must have left the round before, or have been told to.
    fn assigned(&mut self, pid: Pid, seat: &Assignment) {
        let Some(process) = self.processes.get(&pid) else { return };
        let in_round = match &process.stage {
            Stage::InGroup(key) => Some(key.round),
            Stage::Preparing => process.seat.as_ref().map(|seat| seat.round),
            _ => None,
        };
        if let Some(before) = in_round.filter(|before| process.over.is_none_or(|over| over < *before)) {
            let worker = process.worker;
            let round = seat.round;
            self.violation(
                "second list",
                format!("worker {worker} is assigned to round {round} while it works in round {before}"),
            );
        }
    }

    /// The connection to the broker was closed from its side.
    pub(super) fn process_cut_off(&mut self, pid: Pid) {
        if self.are_scripts() {
            return self.processes.get_mut(&pid).into_iter().for_each(|process| process.connection = None);
        }
        if self.processes.get(&pid).is_some_and(Process::listens) {
            self.end_process(pid, Some(1), None, EndedBy::Agent);
        }
    }

    /// A worker sends a message: it arrives behind all that it sent before.
    pub(super) fn say(&mut self, pid: Pid, message: FromWorker) {
        let delay = self.random.up_to_ms(1);
        let Some(process) = self.processes.get_mut(&pid) else { return };
        let Some(connection) = process.connection else { return };
        let agent = process.agent;
        let to_broker = match self.plan.scripts {
            None => BrokerMessage::Worker(message),
            Some(_) => match as_script(process, &message) {
                Some(message) => BrokerMessage::Script(message),
                None => return,
            },
        };
        process.said_until = process.said_until.max(self.now + delay);
        let at = process.said_until;
        self.at(at, Event::Said { agent, connection, message: Box::new(to_broker) });
    }

    fn connect_worker(&mut self, pid: Pid) {
        let connection = self.new_local_connection(pid);
        let Some(process) = self.processes.get_mut(&pid) else { return };
        process.connection = Some(connection);
        let worker = process.worker.0;
        self.say(pid, FromWorker::Hello { protocol: PROTOCOL, worker, pid });
        if let Some(parts) = self.plan.scripts.and_then(|scripts| scripts.parts) {
            self.say(pid, FromWorker::BatchParts { parts });
        }
    }

    /// A worker cannot go on and says so.
    pub(super) fn fail_process(&mut self, pid: Pid, error: String) {
        self.leave_group(pid);
        self.say(pid, FromWorker::Failed { error });
        self.enter_stage(pid, Stage::Ending, Phase::Done);
        let delay = self.random.up_to_ms(100);
        self.step_later(pid, delay, ProcessStep::Exit(1));
    }

    /// A worker has done what it was to do.
    pub(super) fn finish_process(&mut self, pid: Pid, stopped: bool) {
        self.say(pid, FromWorker::Done { stopped });
        self.enter_stage(pid, Stage::Ending, Phase::Done);
        let delay = self.random.up_to_ms(200);
        self.step_later(pid, delay, ProcessStep::Exit(0));
    }

    /// The last checkpoint of a stopped run is waited for.
    pub(super) fn await_commit(&mut self, pid: Pid, step: u64) {
        self.enter_stage(pid, Stage::Saving(step), Phase::Done);
        self.step_later(pid, self.plan.grace / 2, ProcessStep::SaveWaitOver(step));
    }

    /// The collectives of a worker's group broke.
    pub(super) fn feel_break(&mut self, pid: Pid, key: &GroupKey) {
        let now = self.now;
        if self.are_scripts() && self.processes.get(&pid).is_some_and(|process| process.stop) {
            return self.save_script(pid);
        }
        if let Some(process) = self.processes.get_mut(&pid) {
            process.turn += 1;
            process.mark(now, Phase::Collective);
        }
        self.step_later(pid, BROKEN_WAIT, ProcessStep::BrokenFor(key.clone()));
    }

    /// A signal comes to the process's group.
    pub(super) fn signal_process(&mut self, pid: Pid, signal: i32, by: EndedBy) {
        let now = self.now;
        let Some(process) = self.processes.get_mut(&pid).filter(|process| process.alive) else { return };
        let frozen = process.unkillable_until.is_some_and(|until| until > now);
        let deaf = process.hang == Some(Hang::Whole) && signal != SIGNAL_KILL;
        if frozen || deaf {
            process.pending_signal = process.pending_signal.max(Some(signal));
            return;
        }
        self.end_process(pid, None, Some(signal), by);
    }

    /// The process goes on after a stop.
    pub(super) fn thaw(&mut self, pid: Pid) {
        let now = self.now;
        let Some(process) = self.processes.get_mut(&pid) else { return };
        if process.unkillable_until.is_some_and(|until| until > now) {
            return;
        }
        process.unkillable_until = None;
        process.hang = None;
        if let Some(signal) = process.pending_signal.take() {
            return self.end_process(pid, None, Some(signal), EndedBy::Agent);
        }
        let connection = process.connection;
        let agent = process.agent;
        let gone = !self.are_scripts() && connection.is_some_and(|connection| !self.is_connected(agent, connection));
        if gone {
            return self.end_process(pid, Some(1), None, EndedBy::Agent);
        }
        self.unread_messages(pid);
        self.group_resumes(pid);
    }

    /// A stopped process missed what it was told; it hears it now.
    fn unread_messages(&mut self, pid: Pid) {
        let unread = self.unread.remove(&pid).unwrap_or_default();
        unread.into_iter().for_each(|message| self.process_hears(pid, message));
        self.next_order(pid);
    }

    /// The process is gone.
    pub(super) fn end_process(&mut self, pid: Pid, code: Option<i32>, signal: Option<i32>, by: EndedBy) {
        let now = self.now;
        let Some(process) = self.processes.get_mut(&pid).filter(|process| process.alive) else { return };
        process.alive = false;
        process.exit_code = code;
        process.ended_by = Some(by);
        process.turn += 1;
        let page = process.page(now);
        let agent = process.agent;
        let connection = process.connection;
        let hangup = process.said_until.max(now);
        self.trace(|| {
            format!("process {pid} of worker {} ends: code {code:?}, signal {signal:?}, by {by:?}", page.worker)
        });
        self.leave_group(pid);
        self.break_group_of(pid);
        self.state_lost(pid);
        if let Some(connection) = connection {
            self.at(hangup, Event::HungUp { agent, connection });
        }
        let late = self.random.up_to_ms(3);
        let exit = WorkerExit { code, signal, late, page };
        self.at(now + late, Event::Reaped { agent, pid, exit: Box::new(exit) });
    }

    /// What the end of a process left for its node agent to read.
    pub(super) fn evidence(&self, pid: Pid) -> WorkerEvidence {
        let first_launch = self.processes.get(&pid).and_then(|process| process.first_launch.clone());
        WorkerEvidence { stderr: "its last line\n".to_owned(), first_launch }
    }

    /// The worker dies in the first launch of a kernel.
    pub(super) fn crash_in_kernel(&mut self, pid: Pid) {
        if let Some(process) = self.processes.get_mut(&pid) {
            let operands = "f32[2]".to_owned();
            process.first_launch =
                Some(FirstLaunch { op: "sdpa".into(), kernel: "flash".into(), signature: 7, operands });
        }
        self.signal_process(pid, SIGNAL_SEGV, EndedBy::Fault);
    }

    /// `kill -9` from outside.
    pub(super) fn kill_from_outside(&mut self, pid: Pid) {
        self.signal_process(pid, SIGNAL_KILL, EndedBy::Fault);
    }

    /// The node agent ends a worker, with SIGTERM or SIGKILL.
    pub(super) fn agent_signals(&mut self, pid: Pid, kill: bool) {
        self.signal_process(pid, if kill { SIGNAL_KILL } else { SIGNAL_TERM }, EndedBy::Agent);
    }

    pub(super) fn set_flag(&mut self, pid: Pid, flag: WorkerFlag, on: bool) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        match flag {
            // A script hears that from its broker.
            WorkerFlag::Stop if self.plan.scripts.is_some() => {
                let worker = process.worker;
                let agent = process.agent;
                self.on_roster(agent, |roster| roster.stop_script(worker));
            }
            WorkerFlag::Stop => process.stop |= on,
            WorkerFlag::Regroup => process.regroup = on,
        }
    }

    /// Whether a trap waits at this point for the worker that comes there; it has fallen into it then.
    pub(super) fn springs(&mut self, point: TrapPoint, pid: Pid) -> bool {
        let Some(traps) = self.traps.get_mut(&point) else { return false };
        let Some(trap) = traps.pop_front() else { return false };
        self.trace(|| format!("process {pid} falls into {trap:?} at {point:?}"));
        match trap {
            Trap::Hang(hang) => {
                self.hang_process(pid, hang, None);
            }
            Trap::Die => self.kill_from_outside(pid),
        }
        true
    }

    /// The process does nothing any more, or not until then.
    pub(super) fn hang_process(&mut self, pid: Pid, hang: Hang, time: Option<Duration>) {
        let Some(process) = self.processes.get_mut(&pid).filter(|process| process.alive) else { return };
        process.hang = Some(hang);
        if let Some(time) = time {
            self.at(self.now + time, Event::Process { pid, turn: 0, step: ProcessStep::Thaw });
        }
    }

    /// Sends a message to a worker, which reads it unless all of it is stopped.
    pub(super) fn tell_process(&mut self, pid: Pid, message: ToWorker) {
        let whole = self.processes.get(&pid).is_some_and(|process| process.hang == Some(Hang::Whole));
        if whole {
            self.unread.entry(pid).or_default().push(message);
        } else {
            self.process_hears(pid, message);
        }
    }

    /// Whether the worker's task is to save what it has and to end.
    pub(super) fn saves_only(seat: &Assignment) -> bool {
        matches!(seat.task, WorkerTask::Save { .. })
    }
}
