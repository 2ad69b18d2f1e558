//! Messages between the leader of a training run and its followers; the rendezvous carries them.
//!
//! The agent of the node that hosts the rendezvous is the leader: it decides for the workers of all nodes. Every other agent is a
//! follower: it starts, signals and reaps the workers of its node, and forwards their messages. The leader sends orders, a follower
//! sends reports. Add a variant at the end; bump [`super::node::PROTOCOL`] when one changes.

use super::message::{Assignment, FromWorker, Standby, ToWorker};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, path::PathBuf, time::Duration};

/// Order from the leader to a follower.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Order {
    /// Take part in this run. This order comes first.
    TakePart(Box<RunDescription>),
    /// Accept this worker's connection; without a seat it prepares for `standby`.
    Expect { worker: u32, standby: Option<Box<Standby>> },
    /// Start a worker process with its logs there.
    Spawn { worker: u32, seat: Option<SeatFacts>, logs: PathBuf },
    /// A round begins, with these seats on this node.
    Begin { round: u64, seats: BTreeMap<u32, Assignment>, snapshot: Box<RunSnapshot> },
    /// The logs of a worker appear there, too.
    LogAlso { worker: u32, logs: PathBuf },
    /// The workers leave their round at once.
    EndRound { reason: String },
    /// Close a worker's connection, and refuse it from now on.
    Dismiss { worker: u32 },
    /// Send a message to every worker with a seat.
    Tell(Box<ToWorker>),
    /// Report `Synced` after all earlier messages of the workers.
    Sync { worker: u32 },
    /// Close all connections, and refuse new ones.
    CloseAll,
    /// Set this request on the worker's control page, or clear it.
    Request { worker: u32, request: WorkerRequest, wanted: bool },
    /// Signal the worker's group.
    Signal { worker: u32, signal: i32 },
    /// No worker is wanted here any more: leave the run.
    Leave { why: String },
    /// The run is over.
    End(Ending),
    /// Neither receive nor send anything for this time, as if the network were cut.
    Cut { seconds: u32 },
    /// Take this snapshot of the run, as `Begin` would carry it. Answered by `SnapshotReceived`.
    Snapshot(Box<RunSnapshot>),
}

/// Report from a follower to the leader.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Report {
    /// Introduces the node in this membership of the rendezvous, with its live workers.
    Introduced(Box<NodeIntroduction>),
    /// The node cannot take part: one sentence.
    Unfit { reason: String },
    /// A worker process was started.
    Started { worker: u32, pid: u32 },
    /// A worker process could not be started.
    NotStarted { worker: u32, error: String },
    /// A worker process ended.
    Ended { worker: u32, exit: Box<WorkerExit> },
    /// A worker introduced itself.
    Joined { worker: u32 },
    /// A worker sent a message, in the round that it was in then.
    Message { worker: u32, round: Option<u64>, message: Box<FromWorker> },
    /// A worker's connection ended; with an error when it broke the protocol.
    Left { worker: u32, error: Option<String> },
    /// A connection was refused.
    Refused { error: String },
    /// All messages that the worker sent before `Order::Sync` have been reported.
    Synced { worker: u32 },
    /// Control pages that changed; empty when none did.
    StatusChanged(Vec<StatusSnapshot>),
    /// The node was asked to stop by this signal, for the second time or not.
    Signalled { signal: String, second: bool },
    /// `Order::Snapshot` has arrived, with this number of requests.
    SnapshotReceived { requests: u64 },
}

impl Report {
    /// Returns the worker that the report is about, unless it is about the node.
    pub fn worker(&self) -> Option<u32> {
        match self {
            Self::Started { worker, .. }
            | Self::NotStarted { worker, .. }
            | Self::Ended { worker, .. }
            | Self::Joined { worker }
            | Self::Message { worker, .. }
            | Self::Left { worker, .. }
            | Self::Synced { worker } => Some(*worker),
            Self::Introduced(_)
            | Self::Unfit { .. }
            | Self::Refused { .. }
            | Self::StatusChanged(_)
            | Self::Signalled { .. }
            | Self::SnapshotReceived { .. } => None,
        }
    }
}

/// A run, as every node must see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunDescription {
    /// Run directory, on a file system that all nodes share.
    pub run_dir: PathBuf,
    /// Digest of the run's configuration file, hex: the node sees the same directory.
    pub config: String,
    pub staged: PathBuf,
}

/// The seat that a worker is started for. It may get others later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeatFacts {
    pub round: u64,
    pub rank: u32,
    pub local_rank: u32,
    pub world: u32,
    pub local_world: u32,
}

/// Facts of the run that the leader knows, for the successor.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RunSnapshot {
    /// Number of the round that begins, and the name of its attempt.
    pub round: u64,
    pub attempt: String,
    /// Rounds that began from a checkpoint.
    pub restarts: u32,
    /// Failures without a step between them.
    pub failures: u32,
    /// No worker has a higher number.
    pub workers: u32,
    /// Number of parts into which each micro-batch is split.
    pub split: u32,
    /// Number of requests from users that the leader has handled: the snapshot with more is newer.
    pub requests: u64,
    /// Workers wanted by `enn resize`; `None`: as many as the nodes have room for.
    pub resized: Option<u32>,
    pub paused: bool,
    pub leaving: Vec<String>,
    /// The run is to save and end, as after this signal. Nobody takes that back.
    pub stop: Option<String>,
    /// The host that led, if it has left the run: its workers left their round with the others, and nothing failed.
    pub drained: Option<String>,
}

/// Request on a worker's control page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum WorkerRequest {
    /// Finish the step, checkpoint and end.
    Stop,
    /// Finish the step and leave the round.
    Regroup,
}

/// Description of a node for the leader.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeIntroduction {
    pub membership: u64,
    pub host: String,
    /// Workers it runs when none is missing, and those it has room for.
    pub room: u32,
    pub room_max: u32,
    pub workers: Vec<LiveWorker>,
    /// Last snapshot from the previous leader.
    pub snapshot: Option<RunSnapshot>,
}

/// A live worker when a leader takes over.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LiveWorker {
    pub worker: u32,
    pub pid: u32,
    pub local_rank: u32,
    pub seat: Option<LiveSeat>,
    pub joined: bool,
    /// The worker has loaded all that it needs without a seat.
    pub warm: bool,
    pub stateful: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveSeat {
    pub rank: u32,
    /// Whole steps after which it stands, if it left the round.
    pub halted: Option<u64>,
    /// Of the state it has no more than this share of so many.
    pub share: Option<(u32, u32)>,
}

impl LiveSeat {
    /// A seat whose round is on.
    pub fn new(rank: u32) -> Self {
        Self { rank, halted: None, share: None }
    }
}

/// How a worker process ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerExit {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    /// Time from its end to the notice.
    pub late: Duration,
    /// End of its standard error.
    pub stderr: String,
    pub status: StatusSnapshot,
    /// The kernel that was running for the first time: operation, kernel, signature, operands.
    pub intent: Option<(String, String, u64, String)>,
}

/// The fields of a control page that a leader reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StatusSnapshot {
    pub worker: u32,
    /// Number of the phase.
    pub phase: u32,
    pub step: u64,
    pub waited_ns: u64,
    /// Time since its last sign of progress.
    pub silent: Duration,
}

/// How a run ended, for its followers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// Every worker finished its work.
    Finished,
    /// By a signal of this name; the newest checkpoint stands.
    Stopped { signal: String },
    /// A worker failed for good, or the leader could not go on.
    Failed { cause: String },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::frame;

    /// A change here is a change of protocol.
    #[test]
    fn golden_bytes() {
        let bytes = |order: &Order| {
            let mut out = Vec::new();
            frame::encode(order, &mut out).unwrap();
            out
        };
        assert_eq!(bytes(&Order::Dismiss { worker: 7 }), [2, 0, 0, 0, 6, 7]);
        assert_eq!(
            bytes(&Order::Request { worker: 1, request: WorkerRequest::Regroup, wanted: true }),
            [4, 0, 0, 0, 10, 1, 1, 1]
        );
        let mut out = Vec::new();
        frame::encode(&Report::Synced { worker: 9 }, &mut out).unwrap();
        assert_eq!(out, [2, 0, 0, 0, 9, 9]);
        let standing =
            RunSnapshot { round: 3, requests: 2, paused: true, stop: Some("a".into()), ..RunSnapshot::default() };
        let standing = bytes(&Order::Snapshot(Box::new(standing)));
        assert_eq!(standing, [15, 0, 0, 0, 15, 3, 0, 0, 0, 0, 0, 2, 0, 1, 0, 1, 1, b'a', 0]);
    }
}
