//! Inputs of the supervisor: everything that can happen to a run. A new variant is a compile error wherever it is not handled.

use super::effect::{EffectKind, RequestId};
use crate::rendezvous::NodeId;
use enn_common::wire::{
    command::Request,
    node_agent::{Epoch, NodeEvent},
};
use std::{path::PathBuf, time::Duration};

/// Time since the supervisor was made.
pub type Time = Duration;

/// One thing that happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// The deadline has come.
    Tick,
    /// Event of a node agent; those of one node come in order.
    Node { node: NodeId, event: NodeEvent },
    /// A node joined the membership service, with the number of workers that it offers.
    NodeJoined { node: NodeId, host: String, workers: u32 },
    /// A node is gone with its workers.
    NodeLost { node: NodeId, host: String, reason: String },
    /// The nodes agreed on the members of the run, this node included. Each sends an `Inventory` of this epoch.
    MembershipFormed { epoch: Epoch, members: Vec<NodeId> },
    /// The nodes have to agree again. Workers go on meanwhile.
    MembershipReopened,
    /// No node joins or leaves any more.
    MembershipOver(MembershipEnd),
    /// Why the nodes do not agree yet, for the journal.
    Waiting { reason: String },
    /// A user asks for something.
    Request { id: RequestId, request: Request },
    /// Answer to `AcquireRunDir`.
    RunDirAcquired(Result<(), String>),
    /// Answer to `FindCheckpoint`: the newest whole checkpoint, if there is one.
    CheckpointFound(Result<Option<FoundCheckpoint>, FindFailure>),
    /// Answer to `SetAsideCheckpoint`: what is wrong with it; `None` when nothing is.
    CheckpointSetAside(Result<Option<String>, String>),
    /// Answer to `Commit`.
    CommitEnded { step: u64, result: Result<CommittedCheckpoint, CommitFailure> },
    /// Answer to `MakeRoom`: whether an old checkpoint was removed.
    RoomMade { removed: bool },
    /// Answer to `MakeLogDir`.
    LogDirMade { round: u64, error: Option<String> },
    /// Answer to `DigestProgram`; empty when the program cannot be read.
    ProgramDigest { digest: String },
    /// Answer to `CountStoreClients`: so many have come since the round began.
    StoreClients { seen: u64 },
    /// Answer to `HandOff`: the other nodes know the snapshot, and one of them leads.
    HandedOff,
    /// An effect failed that has no answer of its own.
    EffectFailed { effect: EffectKind, error: String },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MembershipEnd {
    /// The run finished.
    Finished,
    /// Another node was asked to stop and too few are left; `by` says by what, where.
    Stopped { by: String },
    /// The run cannot go on, and why. `fenced`: the other side of a broken network may go on in the same directory, so this side
    /// writes nothing more.
    Failed { reason: String, fenced: bool },
}

/// A committed checkpoint on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundCheckpoint {
    pub step: u64,
    pub path: PathBuf,
}

/// Why no checkpoint was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FindFailure {
    pub error: String,
    /// There are checkpoints, and none of them is whole.
    pub none_whole: bool,
}

/// A checkpoint that was just committed.
#[derive(Debug, Clone, PartialEq)]
pub struct CommittedCheckpoint {
    pub path: PathBuf,
    /// Bytes of its files.
    pub bytes: u64,
    pub metric: Option<f64>,
}

/// Why a checkpoint was not committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitFailure {
    pub error: String,
    /// The disk is full: it may help to remove an old checkpoint.
    pub disk_full: bool,
    /// Another leader has the run directory: this one writes nothing more.
    pub fenced: bool,
}
