//! Inputs of the node state: what the membership, the leader, the workers and the machine of a node do.

use crate::{
    rendezvous::{NodeId, RendezvousInfo, RoundEnd, RunEnd},
    supervisor::MembershipEnd,
};
use enn_broker::BrokerEvent;
use enn_common::{
    checkpoint::table::ShardTable,
    event::EventKind,
    failure::Failure,
    id::WorkerId,
    wire::node_agent::{Epoch, NodeCommand, StopSignal, WorkerEvidence, WorkerExit, WorkerProgress, WriteFailure},
};
use enn_process::devices::GpuFinding;
use nix::sys::signal::Signal;
use std::path::PathBuf;

/// One thing that happened to a node.
#[derive(Debug)]
pub enum NodeInput {
    /// The deadline has come.
    Tick,
    /// The node takes part in the membership `epoch`, whose leader can be reached. Comes in each new epoch, also on the node that leads
    /// already, and before any command of that epoch.
    LeaderFound { epoch: Epoch },
    /// The leader is gone, and this node leads the membership `epoch` from now on. A node that leads already takes it for `LeaderFound`.
    BecameLeader { epoch: Epoch, members: Vec<NodeId> },
    /// The members have to agree again; the leader is still there.
    MembershipReopened,
    /// The leader cannot be reached, or has left the run.
    LeaderLost { reason: String },
    /// The run is over for the membership.
    MembershipOver(MembershipEnd),
    /// Why the nodes do not agree yet.
    Waiting { reason: String },
    /// Command of the leader of `epoch`.
    Command { epoch: Epoch, command: NodeCommand },
    /// Answer to `LookAtRun`: one sentence when this node does not see the run as the leader does.
    RunSeen(Result<(), String>),
    /// Answer to `Spawn`.
    Spawned { worker: WorkerId, pid: u32, forked: bool },
    /// Answer to `Spawn`.
    SpawnFailed { worker: WorkerId, error: String },
    /// A worker process ended and was reaped, after what it left in its process group was killed.
    Exited { worker: WorkerId, exit: WorkerExit },
    /// Answer to `ReadEvidence`; what is known of the GPU of a worker that failed.
    Evidence { worker: WorkerId, evidence: WorkerEvidence, gpu: Option<GpuFinding> },
    /// The broker reports.
    Broker(BrokerEvent),
    /// Answer to `ReadPages`: pages of all workers that were started and have not been reaped.
    Pages(Vec<WorkerProgress>),
    /// A signal asks this node to stop.
    Signal(StopSignal),
    /// Answer to `Persist`.
    SnapshotWritten { worker: WorkerId, ticket: u64, result: Result<ShardTable, WriteFailure> },
    /// Answer to `CollectStacks`.
    StacksCollected { round: u64, dir: PathBuf, summary: Vec<String> },
    /// The nodes agreed on this round of programs. Comes before `LeaderFound` or `BecameLeader` of its epoch.
    RoundPlanned(Box<RendezvousInfo>),
    /// The round of programs is over for the membership, and the run goes on.
    RoundEnded(RoundEnd),
    /// The run of programs is over for the membership.
    GroupOver(RunEnd),
    /// Answer to `StartPrograms`.
    ProgramSpawned { worker: WorkerId, pid: u32, forked: bool },
    /// Answer to `StartPrograms`: the failure of the worker that could not be started; none for those behind it.
    ProgramNotStarted { worker: WorkerId, failure: Option<Box<Failure>> },
    /// Answer to `FindCause`.
    CauseFound(Box<Failure>),
    /// A signal that stops a run of programs came to this node.
    ProgramSignal(Signal),
    /// The workers of the next round wait for the fork server, which imports; or they do so no more.
    ForkServer { is_loading: bool },
    /// Something for the people at this node.
    Notice(EventKind),
    /// The broker, the disk or the descriptors of this node cannot be used any more.
    Fault { reason: String },
}
