//! Processes of a node: what a leader that takes over must know of them, and how far each is from its start to its end.
//!
//! **Invariant:** a worker's record is there from `Start` to `Settled` or `StartFailed`, and every wait for a process has a deadline.

use super::{
    effect::{EndSignal, NodeEffect},
    report::EffectList,
};
use enn_common::{
    id::WorkerId,
    wire::{
        message::{Assignment, FromWorker, Standby},
        node_agent::{LivingSeat, LivingWorker, NodeEvent, SeatFacts, StateShare, WorkerEvidence, WorkerExit},
    },
};
use std::{collections::BTreeMap, path::PathBuf, time::Duration};

/// A process that lives so long after SIGKILL is not waited for any more.
const UNKILLABLE_AFTER: Duration = Duration::from_secs(10);
/// Longest wait for the last messages of an ended worker and for what its log shows: the disk may hang.
const SETTLE_WAIT_MAX: Duration = Duration::from_secs(10);

/// A worker to be started.
#[derive(Debug)]
pub(super) struct StartOrder {
    pub(super) seat: Option<SeatFacts>,
    pub(super) standby: Option<Box<Standby>>,
    pub(super) logs: PathBuf,
}

#[derive(Debug)]
enum ProcessStage {
    /// The node has not seen yet that the run is there.
    Ordered(StartOrder),
    /// `Spawn` is not answered yet.
    Starting,
    Alive,
    /// The process was reaped; all that it sent and wrote is not read yet.
    Exited {
        settle_by: Duration,
        messages_read: bool,
        /// It did not end with code 0.
        has_failed: bool,
    },
}

/// How urgently a process is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EndStage {
    /// Nobody asked it to.
    Wanted,
    /// It was sent SIGTERM, or will be when it starts.
    Terminated { kill_at: Duration },
    /// It was sent SIGKILL, or will be when it starts.
    Killed { unkillable_at: Duration },
    /// It survived SIGKILL.
    Unkillable,
}

#[derive(Debug)]
struct WorkerRecord {
    stage: ProcessStage,
    end: EndStage,
    /// The process number; 0 before it was started.
    pid: u32,
    local_rank: u32,
    seat: Option<LivingSeat>,
    connected: bool,
    warm: bool,
    stateful: bool,
    /// Error that it sent.
    error: String,
}

impl WorkerRecord {
    fn new(stage: ProcessStage) -> Self {
        Self {
            stage,
            end: EndStage::Wanted,
            pid: 0,
            local_rank: 0,
            seat: None,
            connected: false,
            warm: false,
            stateful: false,
            error: String::new(),
        }
    }

    fn is_alive(&self) -> bool {
        matches!(self.stage, ProcessStage::Alive)
    }

    /// Notes what a leader that takes over must know of a message.
    fn note(&mut self, message: &FromWorker) {
        match message {
            FromWorker::Warm => self.warm = true,
            FromWorker::Ready { .. } => self.stateful = true,
            FromWorker::Failed { error } => self.error.clone_from(error),
            FromWorker::ShareKept { round, share, of } => {
                if let Some(seat) = self.seat.as_mut().filter(|seat| seat.round == *round) {
                    seat.share = Some(StateShare { index: *share, of: *of });
                }
            }
            FromWorker::Halted { round, step, kept } => {
                if let Some(seat) = self.seat.as_mut().filter(|seat| seat.round == *round) {
                    seat.halted = Some(*step);
                }
                self.stateful &= kept;
            }
            FromWorker::Hello { .. }
            | FromWorker::ModelBuilt { .. }
            | FromWorker::Stepped { .. }
            | FromWorker::EpochEnded(_)
            | FromWorker::ShardWritten { .. }
            | FromWorker::ShardFailed { .. }
            | FromWorker::Trained { .. }
            | FromWorker::ChunkWritten { .. }
            | FromWorker::Warned { .. }
            | FromWorker::Done { .. }
            | FromWorker::KernelFaulted(_)
            | FromWorker::KernelRecovered { .. }
            | FromWorker::KernelsRan(_)
            | FromWorker::PrecisionChosen { .. }
            | FromWorker::Entered { .. }
            | FromWorker::StateReceived { .. }
            | FromWorker::OutOfMemory { .. }
            | FromWorker::BatchChosen { .. }
            | FromWorker::Decided { .. }
            | FromWorker::ShardStaged(_)
            | FromWorker::CheckpointDamaged { .. }
            | FromWorker::Lasting
            | FromWorker::BatchParts { .. } => {}
        }
    }
}

/// All processes of a node.
#[derive(Debug, Default)]
pub(super) struct WorkerRecords {
    workers: BTreeMap<WorkerId, WorkerRecord>,
    /// The broker reads no messages any more.
    broker_broke: bool,
}

impl WorkerRecords {
    /// Starts a worker; later, when this node does not know yet whether it sees the run.
    pub(super) fn start(&mut self, worker: WorkerId, order: StartOrder, run_seen: bool, list: &mut EffectList<'_>) {
        if self.workers.contains_key(&worker) {
            return;
        }
        let seat = order.seat.map(|seat| LivingSeat { round: seat.round, rank: seat.rank, halted: None, share: None });
        let prepared = order.standby.as_ref().map_or(0, |standby| standby.local_rank);
        let local_rank = order.seat.map_or(prepared, |seat| seat.local_rank);
        let record = WorkerRecord { local_rank, seat, ..WorkerRecord::new(ProcessStage::Ordered(order)) };
        self.workers.insert(worker, record);
        if run_seen {
            self.spawn_ordered(list);
        }
    }

    /// Returns the records of workers that no broker hears.
    pub(super) fn without_broker() -> Self {
        Self { broker_broke: true, ..Self::default() }
    }

    /// A program is about to be started.
    pub(super) fn start_program(&mut self, worker: WorkerId) {
        self.workers.insert(worker, WorkerRecord::new(ProcessStage::Starting));
    }

    /// Starts the workers that waited for this node to see the run.
    pub(super) fn spawn_ordered(&mut self, list: &mut EffectList<'_>) {
        for (worker, record) in &mut self.workers {
            if !matches!(record.stage, ProcessStage::Ordered(_)) {
                continue;
            }
            if let ProcessStage::Ordered(StartOrder { seat, standby, logs }) =
                std::mem::replace(&mut record.stage, ProcessStage::Starting)
            {
                list.push(NodeEffect::Admit { worker: *worker, standby });
                list.push(NodeEffect::Spawn { worker: *worker, seat, local_rank: record.local_rank, logs });
            }
        }
    }

    pub(super) fn on_spawned(&mut self, worker: WorkerId, pid: u32, forked: bool, list: &mut EffectList<'_>) {
        let Some(record) =
            self.workers.get_mut(&worker).filter(|record| matches!(record.stage, ProcessStage::Starting))
        else {
            // Nobody waited for it any more.
            return list.push(NodeEffect::Signal { worker, signal: EndSignal::Kill });
        };
        record.stage = ProcessStage::Alive;
        record.pid = pid;
        list.report(NodeEvent::Started { worker, pid, forked });
        match record.end {
            EndStage::Wanted => {}
            EndStage::Terminated { .. } => list.push(NodeEffect::Signal { worker, signal: EndSignal::Terminate }),
            EndStage::Killed { .. } | EndStage::Unkillable => {
                record.end = EndStage::Killed { unkillable_at: list.now + UNKILLABLE_AFTER };
                list.push(NodeEffect::Signal { worker, signal: EndSignal::Kill });
            }
        }
    }

    pub(super) fn on_spawn_failed(&mut self, worker: WorkerId, error: String, list: &mut EffectList<'_>) {
        if self.workers.remove(&worker).is_some() {
            list.push(NodeEffect::Disconnect { worker });
            list.report(NodeEvent::StartFailed { worker, error });
        }
    }

    /// Sends SIGTERM to a worker, and SIGKILL after `kill_after` if it lives then; zero sends SIGKILL at once.
    pub(super) fn terminate(&mut self, worker: WorkerId, kill_after: Duration, list: &mut EffectList<'_>) {
        if kill_after.is_zero() {
            return self.kill(worker, list);
        }
        let Some(record) = self.workers.get_mut(&worker) else { return };
        if matches!(record.stage, ProcessStage::Ordered(_)) {
            return self.cancel(worker, list);
        }
        let later = list.now + kill_after;
        match record.end {
            EndStage::Wanted => record.end = EndStage::Terminated { kill_at: later },
            EndStage::Terminated { kill_at } => record.end = EndStage::Terminated { kill_at: kill_at.min(later) },
            EndStage::Killed { .. } | EndStage::Unkillable => return,
        }
        if record.is_alive() {
            list.push(NodeEffect::Signal { worker, signal: EndSignal::Terminate });
        }
    }

    fn kill(&mut self, worker: WorkerId, list: &mut EffectList<'_>) {
        let Some(record) = self.workers.get_mut(&worker) else { return };
        if matches!(record.stage, ProcessStage::Ordered(_)) {
            return self.cancel(worker, list);
        }
        if matches!(record.end, EndStage::Killed { .. } | EndStage::Unkillable) {
            return;
        }
        record.end = EndStage::Killed { unkillable_at: list.now + UNKILLABLE_AFTER };
        if record.is_alive() {
            list.push(NodeEffect::Signal { worker, signal: EndSignal::Kill });
        }
    }

    pub(super) fn kill_all(&mut self, list: &mut EffectList<'_>) {
        for worker in self.ids() {
            self.kill(worker, list);
        }
    }

    fn cancel(&mut self, worker: WorkerId, list: &mut EffectList<'_>) {
        self.workers.remove(&worker);
        list.report(NodeEvent::StartFailed { worker, error: "it was stopped before it was started".into() });
    }

    /// Kills the workers that the leader before had ordered and that no inventory lists.
    pub(super) fn kill_unborn(&mut self, list: &mut EffectList<'_>) {
        let unborn = |record: &WorkerRecord| matches!(record.stage, ProcessStage::Ordered(_) | ProcessStage::Starting);
        let unborn = self.workers.iter().filter(|(_, record)| unborn(record));
        for worker in unborn.map(|(worker, _)| *worker).collect::<Vec<_>>() {
            self.kill(worker, list);
        }
    }

    pub(super) fn on_exited(&mut self, worker: WorkerId, exit: WorkerExit, list: &mut EffectList<'_>) {
        let Some(record) = self.workers.get_mut(&worker).filter(|record| record.is_alive()) else {
            return list.push(NodeEffect::Forget { worker });
        };
        let messages_read = self.broker_broke;
        let has_failed = exit.code != Some(0);
        record.stage = ProcessStage::Exited { settle_by: list.now + SETTLE_WAIT_MAX, messages_read, has_failed };
        list.report(NodeEvent::Exited { worker, exit });
        list.push(if messages_read { NodeEffect::ReadEvidence { worker } } else { NodeEffect::SyncBroker { worker } });
    }

    /// Handles that all messages of an ended worker have been reported.
    pub(super) fn on_messages_read(&mut self, worker: WorkerId, list: &mut EffectList<'_>) {
        if let Some(record) = self.workers.get_mut(&worker)
            && let ProcessStage::Exited { messages_read, .. } = &mut record.stage
            && !*messages_read
        {
            *messages_read = true;
            list.push(NodeEffect::ReadEvidence { worker });
        }
    }

    /// Waits for no messages any more: the broker is of no use.
    pub(super) fn on_broker_broke(&mut self, list: &mut EffectList<'_>) {
        self.broker_broke = true;
        for worker in self.ids() {
            self.on_messages_read(worker, list);
        }
    }

    /// Returns the local rank of an ended worker that failed, and the error that it sent.
    pub(super) fn failed(&self, worker: WorkerId) -> Option<(u32, &str)> {
        let record = self.workers.get(&worker)?;
        let has_failed = matches!(record.stage, ProcessStage::Exited { has_failed: true, .. });
        has_failed.then_some((record.local_rank, record.error.as_str()))
    }

    /// Ends the story of an ended worker.
    pub(super) fn settle(&mut self, worker: WorkerId, evidence: WorkerEvidence, list: &mut EffectList<'_>) {
        if !self.workers.get(&worker).is_some_and(|record| matches!(record.stage, ProcessStage::Exited { .. })) {
            return;
        }
        self.workers.remove(&worker);
        list.report(NodeEvent::Settled { worker, evidence: Box::new(evidence) });
        list.push(NodeEffect::Disconnect { worker });
        list.push(NodeEffect::Forget { worker });
    }

    /// Gives the workers their seats of a round.
    pub(super) fn seat(&mut self, round: u64, seats: &BTreeMap<WorkerId, Assignment>) {
        for (worker, record) in &mut self.workers {
            let seat = seats.get(worker);
            record.seat = seat.map(|seat| LivingSeat { round, rank: seat.rank, halted: None, share: None });
            record.local_rank = seat.map_or(record.local_rank, |seat| seat.local_rank);
        }
    }

    pub(super) fn set_connected(&mut self, worker: WorkerId, connected: bool) {
        if let Some(record) = self.workers.get_mut(&worker) {
            record.connected = connected;
        }
    }

    pub(super) fn note(&mut self, worker: WorkerId, message: &FromWorker) {
        if let Some(record) = self.workers.get_mut(&worker) {
            record.note(message);
        }
    }

    /// Does what is due: SIGKILL after SIGTERM, and the end of waits.
    pub(super) fn due(&mut self, list: &mut EffectList<'_>) {
        for worker in self.ids() {
            let Some(record) = self.workers.get_mut(&worker) else { continue };
            match (&record.stage, record.end) {
                (ProcessStage::Exited { settle_by, .. }, _) if *settle_by <= list.now => {
                    self.settle(worker, WorkerEvidence::default(), list);
                }
                (ProcessStage::Exited { .. }, _) => {}
                (_, EndStage::Terminated { kill_at }) if kill_at <= list.now => self.kill(worker, list),
                (ProcessStage::Alive, EndStage::Killed { unkillable_at }) if unkillable_at <= list.now => {
                    record.end = EndStage::Unkillable;
                    list.report(NodeEvent::Unkillable { worker, pid: record.pid });
                }
                (_, EndStage::Killed { unkillable_at }) if unkillable_at <= list.now => {
                    let error = format!("it could not be started within {} s", UNKILLABLE_AFTER.as_secs());
                    self.on_spawn_failed(worker, error, list);
                }
                (
                    _,
                    EndStage::Wanted | EndStage::Terminated { .. } | EndStage::Killed { .. } | EndStage::Unkillable,
                ) => {}
            }
        }
    }

    /// Returns the time at which `due` has something to do.
    pub(super) fn deadline(&self) -> Option<Duration> {
        let deadline = |record: &WorkerRecord| match (&record.stage, record.end) {
            (ProcessStage::Exited { settle_by, .. }, _) => Some(*settle_by),
            (_, EndStage::Terminated { kill_at: at } | EndStage::Killed { unkillable_at: at }) => Some(at),
            (_, EndStage::Wanted | EndStage::Unkillable) => None,
        };
        self.workers.values().filter_map(deadline).min()
    }

    /// Reports the processes that survived SIGKILL to a leader that has not heard of them.
    pub(super) fn report_unkillable(&self, list: &mut EffectList<'_>) {
        for (worker, record) in self.workers.iter().filter(|(_, record)| record.end == EndStage::Unkillable) {
            if record.is_alive() {
                list.report(NodeEvent::Unkillable { worker: *worker, pid: record.pid });
            }
        }
    }

    /// Returns whether no process is left, but for those that survived SIGKILL.
    pub(super) fn are_gone(&self) -> bool {
        self.workers.values().all(|record| record.is_alive() && record.end == EndStage::Unkillable)
    }

    /// Returns whether a process lives whose control page can be read.
    pub(super) fn has_pages(&self) -> bool {
        self.workers.values().any(WorkerRecord::is_alive)
    }

    pub(super) fn contains(&self, worker: WorkerId) -> bool {
        self.workers.contains_key(&worker)
    }

    /// Returns whether the process of this worker was started and not reaped.
    pub(super) fn is_alive(&self, worker: WorkerId) -> bool {
        self.workers.get(&worker).is_some_and(WorkerRecord::is_alive)
    }

    /// Returns the living processes as an inventory lists them.
    pub(super) fn living(&self) -> Vec<LivingWorker> {
        let living = |worker: WorkerId, record: &WorkerRecord| LivingWorker {
            worker,
            pid: record.pid,
            local_rank: record.local_rank,
            seat: record.seat,
            connected: record.connected,
            warm: record.warm,
            stateful: record.stateful,
            ending: record.end != EndStage::Wanted,
        };
        let alive = self.workers.iter().filter(|(_, record)| record.is_alive());
        alive.map(|(worker, record)| living(*worker, record)).collect()
    }

    /// Returns the living processes with a seat in this round.
    pub(super) fn seated_in(&self, round: u64) -> Vec<WorkerId> {
        let seated = |record: &WorkerRecord| record.seat.is_some_and(|seat| seat.round == round) && record.is_alive();
        self.workers.iter().filter(|(_, record)| seated(record)).map(|(worker, _)| *worker).collect()
    }

    fn ids(&self) -> Vec<WorkerId> {
        self.workers.keys().copied().collect()
    }
}
