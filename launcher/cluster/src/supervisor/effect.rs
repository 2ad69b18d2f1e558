//! Effects that the supervisor asks for. They are carried out in order; a crash may cut the list anywhere.

use super::complete_checkpoint::CompleteCheckpoint;
use crate::rendezvous::NodeId;
use enn_common::{
    event::EventKind,
    metrics::Metrics,
    wire::{
        command::Answer,
        node::{RoundEnd, RunEnd as GroupRunEnd},
        node_agent::{Epoch, NodeCommand, RunSnapshot, StopSignal},
    },
};
use std::{collections::BTreeMap, path::PathBuf, time::Duration};

/// A request of a user that waits for its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// One thing to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Send a command to one node agent.
    Send { node: NodeId, command: NodeCommand },
    /// Write an event to the journal and the display.
    Journal(EventKind),
    /// Answer a user.
    Answer { id: RequestId, answer: Answer },
    /// Remove what dead attempts left behind and find the newest whole checkpoint, behind the commits under way. Answered by
    /// `CheckpointFound`.
    FindCheckpoint,
    /// Take a checkpoint that a worker could not read, because of `file`, from those that are found, if it is damaged. Answered by
    /// `CheckpointSetAside`.
    SetAsideCheckpoint { path: PathBuf, file: Option<PathBuf> },
    /// Make the shards a checkpoint, whole or not at all, and remove old ones. Answered by `CommitEnded`.
    Commit(CompleteCheckpoint),
    /// Remove old checkpoints that need not stay when this one is there. Answered by `RoomMade`.
    MakeRoom(CompleteCheckpoint),
    /// Remove what the workers of `attempt` wrote of steps before `below` and nobody will commit.
    DiscardAttempt { attempt: String, below: u64 },
    /// Replace a file of the run directory whole.
    WriteRunFile { name: &'static str, bytes: Vec<u8> },
    /// Note durably that these rows are predicted.
    NoteChunk(PredictedChunk),
    /// Make the directory for the logs of a round. A launch that resumes the run counts these directories. Answered by `LogDirMade`.
    MakeLogDir { round: u64 },
    /// Digest the worker program. Answered by `ProgramDigest`.
    DigestProgram,
    /// Give up a node of the membership that does not do its part.
    ExpelNode { node: NodeId, reason: String },
    /// Agree again on the members.
    RejoinMembership,
    /// The run is finished: the membership of this epoch ends.
    FinishMembership { epoch: Epoch },
    /// Tell the membership of this epoch that its round is over. Another one follows as restart `number` of the run, not before `wait` has
    /// passed.
    EndMembershipRound { epoch: Epoch, end: RoundEnd, number: u32, wait: Duration },
    /// Tell the membership that the run is over.
    EndMembership(GroupRunEnd),
    /// Count the clients of the store. Answered by `StoreClients`.
    CountStoreClients,
    /// Take the lock of the run directory from the leader that is gone. Answered by `RunDirAcquired`.
    AcquireRunDir,
    /// Accept no more requests of users.
    CloseControl,
    /// Leave the lead to another node, which gets this snapshot. Answered by `HandedOff`.
    HandOff(Box<RunSnapshot>),
    /// The run is over on this node.
    Finish(Box<RunOutcome>),
}

/// Kinds of effects that can fail without an answer of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EffectKind {
    Journal,
    WriteRunFile,
    NoteChunk,
    MakeLogDir,
    DiscardAttempt,
}

/// A range of predicted rows on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PredictedChunk {
    /// First row.
    pub start: u64,
    /// Row after the last.
    pub end: u64,
    pub path: PathBuf,
    /// Digest, hex.
    pub blake3: String,
}

#[derive(Debug, Clone, PartialEq)]
pub enum RunEnd {
    /// Every worker finished its work.
    Finished,
    /// A signal or a request asked to stop; the newest checkpoint stands.
    Stopped(StopSignal),
    /// The run failed; `cause` is the first failure of the last round and why no other round followed.
    Failed { cause: String },
    /// The checkpoints of the run cannot be looked at.
    CheckpointsUnusable { error: String, none_whole: bool },
    /// Another node leads the run now.
    HandedOff,
}

#[derive(Debug, Clone, PartialEq)]
pub struct RunOutcome {
    pub end: RunEnd,
    /// Rounds that began from a checkpoint because nobody had kept the state.
    pub restarts: u32,
    /// Rounds begun.
    pub rounds: u64,
    /// Final metrics of each split, when training ended by itself.
    pub metrics: Option<BTreeMap<String, Metrics>>,
    /// Step and directory of the newest checkpoint committed or found.
    pub checkpoint: Option<(u64, PathBuf)>,
    /// Why the last state of training is in no checkpoint, when it is in none; also after a stop, where that is no error.
    pub unsaved: Option<String>,
    /// Workers that survived SIGKILL, as host and process number.
    pub unkillable: Vec<(String, u32)>,
    /// Chunks written in this run, by first row.
    pub chunks: Vec<PredictedChunk>,
}
