//! Languages between the supervisor of a run, which decides, and its node agents, which own the processes of their nodes.
//!
//! The supervisor runs on the leader and sends commands; every node agent, the leader's own included, sends events. Each command
//! travels in the epoch of its leader, and a node agent drops commands of an older epoch and of another leader. Messages of one node stay in order. Add a
//! variant at the end; bump [`super::node::PROTOCOL`] when one changes.

use super::{
    message::{Assignment, FromWorker, Standby, ToWorker},
    node::NodeId,
};
use crate::{checkpoint::table::ShardTable, failure::Failure, id::WorkerId};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, num::NonZeroU32, path::PathBuf, time::Duration};

/// Name of a membership of the run's nodes.
///
/// The number rises with each membership, also when another node leads. A leader that is cut off and its successor may use the same
/// number, so that the leader is part of the name. Its agent has a random name, also when it starts again on the same host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Epoch {
    pub number: u64,
    pub leader: NodeId,
}

impl Epoch {
    /// Returns whether a message of this epoch belongs to the leader that was found in the epoch `since`.
    pub fn is_of_leader(self, since: Self) -> bool {
        self.leader == since.leader && self.number >= since.number
    }
}

/// Command from the supervisor to a node agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum NodeCommand {
    /// Take part in this run. This command comes first.
    JoinRun(Box<RunFacts>),
    /// Start a worker process with its logs in `logs`. Without a seat it prepares for `standby`.
    Start { worker: WorkerId, seat: Option<SeatFacts>, standby: Option<Box<Standby>>, logs: PathBuf },
    /// A round begins with these seats on this node. The node fills in the address of the store.
    BeginRound { round: u64, seats: BTreeMap<WorkerId, Assignment>, snapshot: Box<RunSnapshot> },
    /// The workers leave the round at once.
    EndRound { round: u64, reason: String },
    /// Set a flag on the control pages of these workers, or clear it.
    SetFlag { workers: Vec<WorkerId>, flag: WorkerFlag, on: bool },
    /// Send a message to every worker with a seat.
    Broadcast(Box<ToWorker>),
    /// Tell the worker to end, close its connection, send SIGTERM, and SIGKILL after `kill_after`.
    Dismiss { worker: WorkerId, kill_after: Duration },
    /// Send the signal to these workers' groups, and SIGKILL after `kill_after` to those that live then; zero sends SIGKILL at once.
    Stop { workers: Vec<WorkerId>, kill_after: Duration },
    /// Close all connections of workers, and refuse new ones; spares that are scripts keep theirs.
    DisconnectAll,
    /// The logs of a worker appear in this directory, too.
    LinkLogs { worker: WorkerId, logs: PathBuf },
    /// Write the snapshot that a worker left in memory as the shard of `rank` in `dir`. Answered by `SnapshotWritten`.
    PersistSnapshot { worker: WorkerId, ticket: u64, dir: PathBuf, rank: u32 },
    /// The snapshot is not needed: the worker gets its memory back.
    ReleaseSnapshot { worker: WorkerId, ticket: u64 },
    /// Write within `limit` what the living workers of the round are doing. Answered by `Stacks`.
    CollectStacks { round: u64, limit: Duration },
    /// Keep this snapshot of the run for the next leader. Answered by `SnapshotAcked`.
    ReplicateSnapshot(Box<RunSnapshot>),
    /// No worker is wanted on this node any more: leave the run.
    LeaveRun { why: String },
    /// The run is over.
    EndRun(RunEnding),
    /// Neither receive nor send anything for this time, as if the network were cut.
    CutLink { time: Duration },
    /// A round of programs that read their seats from the environment begins: start these workers, by local rank, all at once. The
    /// node knows its ranks from the membership, whose round has the same number.
    BeginGroup { round: u64, restarts: u32, workers: Vec<WorkerId>, snapshot: Box<RunSnapshot> },
}

/// Event from a node agent to the supervisor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum NodeEvent {
    /// The node takes part in the membership `epoch`; first event in each membership.
    Inventory(Box<Inventory>),
    /// The node cannot take part: one sentence.
    Unfit { reason: String },
    /// A worker process was started: forked by the fork server, or executed.
    Started { worker: WorkerId, pid: u32, forked: bool },
    /// A worker process could not be started. No other event of this worker follows.
    StartFailed { worker: WorkerId, error: String },
    /// A worker introduced itself to the broker.
    Connected { worker: WorkerId },
    /// A worker sent a message in the round that it had entered.
    WorkerMessage { worker: WorkerId, round: Option<u64>, message: Box<FromWorker> },
    /// A worker's connection ended; with an error when it broke the protocol.
    Disconnected { worker: WorkerId, error: Option<String> },
    /// A connection of an unknown process was refused.
    Refused { reason: String },
    /// A worker process ended: sent at once, before its last messages have been read.
    Exited { worker: WorkerId, exit: WorkerExit },
    /// All that an ended worker has sent was reported, and its process group is gone: its device is free. Last event of a worker.
    Settled { worker: WorkerId, evidence: Box<WorkerEvidence> },
    /// A worker lives so long after SIGKILL that nobody may wait for its end.
    Unkillable { worker: WorkerId, pid: u32 },
    /// Control pages that changed; empty when none did and the node lives.
    Progress(Vec<WorkerProgress>),
    /// Answer to `PersistSnapshot`.
    SnapshotWritten { worker: WorkerId, ticket: u64, result: Result<Box<ShardTable>, WriteFailure> },
    /// Answer to `CollectStacks`: the directory, and lines for people.
    Stacks { round: u64, dir: PathBuf, summary: Vec<String> },
    /// The node was asked to stop by this signal; `second` when an earlier one had come to this node.
    Signal { signal: StopSignal, second: bool },
    /// `ReplicateSnapshot` with this number of requests has arrived.
    SnapshotAcked { requests: u64 },
    /// Something of the node broke and its workers cannot go on there: broker, disk, descriptors.
    Fault { reason: String },
    /// A worker of a group failed, and the node ends the others of its own. Sent once in a round.
    GroupFailed { round: u64, failure: Box<Failure> },
    /// A worker failed because of its device. Comes again in each membership for a device that is sick.
    DeviceFailed(Box<DeviceFailure>),
}

impl NodeEvent {
    /// Returns the worker that the event is about; `None` when it is about the node.
    pub fn worker(&self) -> Option<WorkerId> {
        match self {
            Self::Started { worker, .. }
            | Self::StartFailed { worker, .. }
            | Self::Connected { worker }
            | Self::WorkerMessage { worker, .. }
            | Self::Disconnected { worker, .. }
            | Self::Exited { worker, .. }
            | Self::Settled { worker, .. }
            | Self::Unkillable { worker, .. }
            | Self::SnapshotWritten { worker, .. } => Some(*worker),
            Self::Inventory(_)
            | Self::Unfit { .. }
            | Self::Refused { .. }
            | Self::Progress(_)
            | Self::Stacks { .. }
            | Self::Signal { .. }
            | Self::SnapshotAcked { .. }
            | Self::Fault { .. }
            | Self::GroupFailed { .. }
            | Self::DeviceFailed(_) => None,
        }
    }
}

/// Failures of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceFailure {
    pub local_rank: u32,
    /// The device, for people.
    pub device: String,
    /// What it did, for people.
    pub reason: String,
    /// Devices that the workers of the node can have, sick ones included; 0: not known.
    pub devices: u32,
    /// It is to have no worker any more.
    pub is_sick: bool,
}

/// Facts by which every node checks that it sees the run as the leader does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunFacts {
    /// Run directory, on a file system that all nodes share.
    pub run_dir: PathBuf,
    /// Digest of the run's configuration file, hex.
    pub config: String,
    /// Staged data.
    pub staged: PathBuf,
}

/// Flag on a worker's control page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum WorkerFlag {
    /// Finish the step, save and end. It is never cleared.
    Stop,
    /// Finish the step and leave the round.
    Regroup,
}

/// Seat that a worker is started for. It may get others later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeatFacts {
    pub round: u64,
    pub rank: u32,
    pub local_rank: u32,
    pub world: u32,
    pub local_world: u32,
    /// Rank of its node among those with a seat in the round, and their number.
    pub node_rank: u32,
    pub nodes: u32,
    /// Restarts of all workers before it.
    pub restarts: u32,
}

/// Signal that asks a run to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StopSignal {
    /// Ctrl-C.
    Interrupt,
    /// SIGTERM, also SIGHUP and SIGQUIT.
    Terminate,
    /// SIGUSR1: the time limit of the job is near.
    TimeLimit,
}

impl StopSignal {
    /// Returns the signal of this name; every other signal that stops counts as SIGTERM.
    pub fn named(name: &str) -> Self {
        match name {
            "SIGINT" => Self::Interrupt,
            "SIGUSR1" => Self::TimeLimit,
            _ => Self::Terminate,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
            Self::TimeLimit => "SIGUSR1",
        }
    }

    /// Returns whether one more signal is a second request of the user, after the `first` that this node got. Slurm ends what it
    /// requeues: a signal after SIGUSR1 is no second request.
    pub fn is_second(first: Option<Self>) -> bool {
        first.is_some_and(|first| first != Self::TimeLimit)
    }
}

/// Everything that a successor of the leader must know. The newest one is that of the last leader, of its last membership, with the most
/// requests, then with the highest round.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RunSnapshot {
    /// Epoch of the leader that wrote it.
    pub epoch: Epoch,
    /// How often the lead has changed. It is part of the names of the workers that the leader starts.
    pub term: u32,
    /// Number of the round that begins, and the name of its attempt.
    pub round: u64,
    pub attempt: String,
    /// Rounds that began from a checkpoint because nobody had kept the state.
    pub restarts: u32,
    /// Failures that count against the restart budget.
    pub failures: u32,
    /// Rounds in a row that failed before a worker was ready.
    pub early_failures: u32,
    /// A worker was ready once: the start-up is right.
    pub proven: bool,
    /// Spares that died in a row before they were warm.
    pub spare_deaths: u32,
    pub micro_batches: MicroBatchFacts,
    /// Number of equal parts into which a step of a script can be cut, where it said so.
    pub parts: Option<NonZeroU32>,
    /// Number of requests from users that the leader has handled.
    pub requests: u64,
    /// Workers wanted by `enn resize`; `None`: as many as the nodes have room for.
    pub resized: Option<u32>,
    pub paused: bool,
    /// Hosts that the workers are to leave.
    pub leaving: Vec<String>,
    /// The run is to save and end, as after this signal. Nobody takes that back.
    pub stop: Option<StopSignal>,
    /// The run is to save and end as failed, for this reason.
    pub giving_up: Option<String>,
    /// The host that led, if it left the run after `enn drain`: nothing failed.
    pub drained: Option<String>,
}

impl RunSnapshot {
    /// Returns whether this snapshot knows more than `other`.
    pub fn is_newer_than(&self, other: &Self) -> bool {
        let order = |one: &Self| (one.term, one.epoch, one.requests, one.round);
        order(self) > order(other)
    }
}

/// Number of parts of each micro-batch, and when fewer are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MicroBatchFacts {
    pub split: u32,
    /// Steps without trouble after which fewer parts are tried.
    pub wait: u64,
    /// Step at which the number changed last.
    pub changed: u64,
    /// The last change was to fewer.
    pub trying: bool,
}

/// Description of a node and its workers for the leader of a membership.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Inventory {
    pub epoch: Epoch,
    pub host: String,
    /// Workers that the node runs when none is missing.
    pub workers: u32,
    /// Workers that it has room for, at least `workers`.
    pub workers_max: u32,
    pub living: Vec<LivingWorker>,
    /// Newest snapshot that a leader replicated to this node.
    pub snapshot: Option<Box<RunSnapshot>>,
    /// Signal that asked this node to stop.
    pub stop: Option<StopSignal>,
}

/// A living worker as its node agent knows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LivingWorker {
    pub worker: WorkerId,
    pub pid: u32,
    /// Index of the device that it has, or is prepared for.
    pub local_rank: u32,
    pub seat: Option<LivingSeat>,
    pub connected: bool,
    /// It has loaded all that it needs without a seat.
    pub warm: bool,
    /// It has the state of training.
    pub stateful: bool,
    /// It was told to end.
    pub ending: bool,
}

/// Seat of a living worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LivingSeat {
    pub round: u64,
    pub rank: u32,
    /// Whole steps after which it left the round; `None`: it has not left.
    pub halted: Option<u64>,
    /// Part of the state that it has; `None`: all of it.
    pub share: Option<StateShare>,
}

/// One part of the state of training of so many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StateShare {
    pub index: u32,
    pub of: u32,
}

/// How a worker process ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerExit {
    /// Exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    pub signal: Option<i32>,
    /// Upper bound on the time from its end to the notice.
    pub late: Duration,
    /// Its control page at the end.
    pub page: WorkerProgress,
}

/// What is known of an ended worker besides its messages.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct WorkerEvidence {
    /// Last lines of its standard error.
    pub stderr: String,
    /// Kernel that was running for the first time on such operands.
    pub first_launch: Option<FirstLaunch>,
}

/// First launch of a kernel on operands of a signature.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstLaunch {
    pub op: String,
    pub kernel: String,
    pub signature: u64,
    pub operands: String,
}

/// Fields of a control page that the supervisor reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerProgress {
    pub worker: WorkerId,
    pub phase: u32,
    pub step: u64,
    /// Time that it waited for others since the round began.
    pub waited: Duration,
    /// Time since its last sign of progress.
    pub idle: Duration,
}

/// Why a shard could not be written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteFailure {
    pub error: String,
    /// The disk is full: it may help to remove an old checkpoint.
    pub disk_full: bool,
}

/// How a run ended, for its nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunEnding {
    /// Every worker finished its work.
    Finished,
    /// A signal asked to stop; the newest checkpoint stands.
    Stopped { signal: StopSignal },
    /// A worker failed for good, or the leader could not go on.
    Failed { cause: String },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::frame;

    fn bytes<T: Serialize>(message: &T) -> Vec<u8> {
        let mut out = Vec::new();
        frame::encode(message, &mut out).unwrap();
        out
    }

    /// A change here is a change of protocol.
    #[test]
    fn golden_bytes() {
        let release = NodeCommand::ReleaseSnapshot { worker: WorkerId(7), ticket: 3 };
        let epoch = Epoch { number: 9, leader: NodeId(5) };
        assert_eq!(bytes(&(epoch, release)), [5, 0, 0, 0, 9, 5, 11, 7, 3]);
        let flag = NodeCommand::SetFlag { workers: vec![WorkerId(1)], flag: WorkerFlag::Regroup, on: true };
        assert_eq!(bytes(&flag), [5, 0, 0, 0, 4, 1, 1, 1, 1]);
        assert_eq!(bytes(&NodeEvent::SnapshotAcked { requests: 9 }), [2, 0, 0, 0, 15, 9]);
        assert_eq!(bytes(&NodeEvent::Started { worker: WorkerId(2), pid: 5, forked: true }), [4, 0, 0, 0, 2, 2, 5, 1]);
    }

    #[test]
    fn an_epoch_names_its_leader_and_a_successor_knows_more_than_a_leader_that_is_cut_off() {
        let epoch = |number, leader| Epoch { number, leader: NodeId(leader) };
        assert_ne!(epoch(4, 1), epoch(4, 2));
        assert!(epoch(4, 1).is_of_leader(epoch(4, 1)) && epoch(5, 1).is_of_leader(epoch(4, 1)));
        assert!(!epoch(3, 1).is_of_leader(epoch(4, 1)) && !epoch(5, 2).is_of_leader(epoch(4, 1)));
        let snapshot = |term, epoch, requests| RunSnapshot { term, epoch, requests, ..RunSnapshot::default() };
        let successor = snapshot(1, epoch(4, 1), 0);
        for cut_off in [snapshot(0, epoch(4, 2), 9), snapshot(0, epoch(6, 2), 0)] {
            assert!(successor.is_newer_than(&cut_off) && !cut_off.is_newer_than(&successor));
        }
        assert!(snapshot(1, epoch(4, 1), 1).is_newer_than(&successor));
    }
}
