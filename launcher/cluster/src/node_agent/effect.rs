//! Effects that the node state asks for. They are carried out in order.

use crate::rendezvous::{NodeId, RendezvousInfo, RunEnd};
use enn_common::{
    event::EventKind,
    id::WorkerId,
    wire::{
        message::{Assignment, StagedShard, Standby, ToWorker},
        node_agent::{Epoch, NodeEvent, RunEnding, RunFacts, RunSnapshot, SeatFacts, StopSignal, WorkerFlag},
    },
};
use nix::sys::signal::Signal;
use std::{collections::BTreeMap, path::PathBuf, time::Duration};

/// Signal to a worker's process group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndSignal {
    Terminate,
    Kill,
    /// The one that asked this node to stop. A program that does not handle SIGUSR1 gets SIGTERM instead.
    Request(Signal),
}

/// A round of programs on this node.
#[derive(Debug, Clone, PartialEq)]
pub struct ProgramRound {
    pub plan: RendezvousInfo,
    pub restarts: u32,
    /// Workers of this node, by local rank.
    pub workers: Vec<WorkerId>,
}

/// One thing to do on a node.
#[derive(Debug, Clone, PartialEq)]
pub enum NodeEffect {
    /// Send an event to the leader.
    Report(NodeEvent),
    /// Write an event for the people at this node.
    Journal(EventKind),
    /// Look whether this node sees the run as the leader does. Answered by `RunSeen`.
    LookAtRun(RunFacts),
    /// Let the broker accept a worker, which prepares for `standby` while it has no seat.
    Admit { worker: WorkerId, standby: Option<Box<Standby>> },
    /// Start a worker process, for a seat or for the device of this local rank. Answered by `Spawned` or `SpawnFailed`.
    Spawn { worker: WorkerId, seat: Option<SeatFacts>, local_rank: u32, logs: PathBuf },
    /// Start these programs, by local rank, and let them begin together. Each is answered by `ProgramSpawned` or `ProgramNotStarted`;
    /// behind one that cannot be started none is.
    StartPrograms(Box<ProgramRound>),
    /// Find out which worker of the round failed first. Answered by `CauseFound`.
    FindCause,
    /// No worker of the round lives: kill what they left behind, unless it may live on, and show what they wrote.
    ClearGroup { keep_background: bool },
    /// Signal the process group of a worker.
    Signal { worker: WorkerId, signal: EndSignal },
    /// Set or clear a flag on a control page.
    SetFlag { worker: WorkerId, flag: WorkerFlag, on: bool },
    /// Give the connected workers their seats, and the others when they connect. The shell fills in the address of the store and the
    /// number of threads of this node. A worker that has ended may be among them.
    Seat { round: u64, seats: BTreeMap<WorkerId, Assignment> },
    /// Tell the workers with a seat that their round is over.
    EndRound { reason: String },
    /// Send a message to every worker with a seat.
    Broadcast(Box<ToWorker>),
    /// Tell a worker to end, close its connection, and admit it no more. It may have ended already.
    Disconnect { worker: WorkerId },
    /// Close all connections, and refuse new ones.
    DisconnectAll,
    /// Have the broker report `Synced` with the worker's number behind all that it has received.
    SyncBroker { worker: WorkerId },
    /// Read the end of an ended worker's standard error and the kernel that it launched last. Answered by `Evidence`.
    ReadEvidence { worker: WorkerId },
    /// The worker's page, logs and process are not needed any more. Its kept snapshots stay until they are written or released.
    Forget { worker: WorkerId },
    /// Make the logs of a worker appear in this directory, too.
    LinkLogs { worker: WorkerId, logs: PathBuf },
    /// Write a worker's snapshot as a shard, then give the worker its memory back. Answered by `SnapshotWritten`.
    Persist { worker: WorkerId, ticket: u64, dir: PathBuf, rank: u32 },
    /// Give a worker the memory of its snapshot back.
    Release { worker: WorkerId, ticket: u64 },
    /// Keep a snapshot that the worker reported; `shard` says where it is. The worker's end does not change it.
    Keep { worker: WorkerId, shard: Box<StagedShard> },
    /// Write within `limit` what these workers are doing. Answered by `StacksCollected`.
    CollectStacks { round: u64, workers: Vec<WorkerId>, limit: Duration },
    /// Read the control pages of all workers that were started and have not been reaped. Answered by `Pages`.
    ReadPages,
    /// Neither receive nor send anything for this time.
    CutLink { time: Duration },
    /// Join the membership again. The node that leads does that as its supervisor says.
    RejoinMembership,
    /// Leave the membership.
    LeaveMembership { why: String },
    /// Tell the membership that this node's work is done. Comes before `End`; the shell waits a moment for the membership to hear it.
    FinishMembership { epoch: Epoch },
    /// Lead the run from this snapshot: make a supervisor with `Supervisor::take_over`. The node state goes on as the leader's own, and
    /// what it reports from now on is for that supervisor.
    Lead { epoch: Epoch, members: Vec<NodeId>, snapshot: Box<RunSnapshot>, facts: RunFacts },
    /// The run is over on this node, and no worker lives but those that survived SIGKILL. Last effect.
    End(NodeEnd),
}

/// How a run of programs ended for a node.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupEnd {
    pub end: RunEnd,
    /// Rounds that this node took part in.
    pub rounds: u64,
    pub restarts: u32,
    /// Signal that asked this node to stop.
    pub stopped_by: Option<Signal>,
    /// Another one followed.
    pub is_stopped_twice: bool,
}

/// How a run ended for a node.
#[derive(Debug, Clone, PartialEq)]
pub enum NodeEnd {
    /// As the leader says.
    Ended(RunEnding),
    /// The node was asked to stop before it had a part in the run.
    Stopped(StopSignal),
    /// No worker is wanted on this node any more.
    Drained,
    /// This node cannot go on, and why.
    Failed(String),
    /// A run of programs is over.
    Group(Box<GroupEnd>),
}
