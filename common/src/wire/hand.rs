//! What the head of a training run and its hands say to each other, as letters of the rendezvous.
//!
//! The agent of the node that hosts the rendezvous is the head: it decides for the workers of all nodes. Every other agent is a
//! hand: it starts, signals and reaps the workers of its node, and passes on what they say. Orders go down, reports go up. Add a
//! variant at the end; bump [`super::node::PROTOCOL`] when one changes.

#![expect(missing_docs, reason = "fields of the variants are told in the variant's own sentence")]

use super::message::{Assignment, FromWorker, Standby, ToWorker};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, path::PathBuf, time::Duration};

/// From the head to a hand.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Order {
    /// The run that this node takes part in. Comes first.
    Work(Box<Work>),
    /// Let this worker in when it comes; without a seat it prepares for `standby`.
    Expect { worker: u32, standby: Option<Box<Standby>> },
    /// Start a worker process with its logs there.
    Spawn { worker: u32, seat: Option<SeatFacts>, logs: PathBuf },
    /// A round begins, with these seats on this node.
    Begin { round: u64, seats: BTreeMap<u32, Assignment>, standing: Box<Standing> },
    /// The logs of a worker appear there, too.
    LogAlso { worker: u32, logs: PathBuf },
    /// The workers leave their round at once.
    EndRound { reason: String },
    /// Close a worker's connection, and let it in no more.
    Dismiss { worker: u32 },
    /// The same message to every worker with a seat.
    Tell(Box<ToWorker>),
    /// Report `Synced` behind everything that the workers have said.
    Sync { worker: u32 },
    /// Close all connections, and let nobody in any more.
    CloseAll,
    /// Set this wish on the worker's control page, or take it back.
    Wish { worker: u32, wish: Wish, wanted: bool },
    /// Signal the worker's group.
    Signal { worker: u32, signal: i32 },
    /// No worker is wanted here any more: leave the run.
    Leave { why: String },
    /// The run is over.
    End(Ending),
    /// Neither hear nor say anything for so long, as if the network were cut.
    Cut { seconds: u32 },
    /// What `Begin` would say of the run now. Report `Heard`.
    Standing(Box<Standing>),
}

/// From a hand to the head.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Report {
    /// The node, in this membership of the rendezvous, and the workers that live on it.
    Here(Box<Here>),
    /// The node cannot take part: one sentence.
    Unfit { reason: String },
    /// A worker process was started.
    Started { worker: u32, pid: u32 },
    /// It could not be started.
    NotStarted { worker: u32, error: String },
    /// A worker process ended.
    Ended { worker: u32, end: Box<End> },
    /// A worker introduced itself.
    Joined { worker: u32 },
    /// A worker said something, in the round it was in then.
    Said { worker: u32, round: Option<u64>, message: Box<FromWorker> },
    /// A worker's connection ended; with an error when it broke the protocol.
    Left { worker: u32, error: Option<String> },
    /// Somebody was turned away.
    Refused { error: String },
    /// Everything that the worker had said before `Order::Sync` has been reported.
    Synced { worker: u32 },
    /// Control pages that changed; empty: none did.
    Glanced(Vec<Glance>),
    /// The node was asked to stop by this signal, for the second time or not.
    Signalled { signal: String, second: bool },
    /// `Order::Standing` has come, with so many wishes.
    Heard { wishes: u64 },
}

impl Report {
    /// The one worker that it is about.
    pub fn worker(&self) -> Option<u32> {
        match self {
            Self::Started { worker, .. }
            | Self::NotStarted { worker, .. }
            | Self::Ended { worker, .. }
            | Self::Joined { worker }
            | Self::Said { worker, .. }
            | Self::Left { worker, .. }
            | Self::Synced { worker } => Some(*worker),
            Self::Here(_)
            | Self::Unfit { .. }
            | Self::Refused { .. }
            | Self::Glanced(_)
            | Self::Signalled { .. }
            | Self::Heard { .. } => None,
        }
    }
}

/// A run, as every node must see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// Run directory, on a file system that all nodes share.
    pub run_dir: PathBuf,
    /// Digest of the run's configuration file, hex: the node sees the same directory.
    pub config: String,
    /// Staged data.
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

/// What the head knows of the run, for whoever takes over when it dies.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Standing {
    /// Number of the round that begins, and the name of its attempt.
    pub round: u64,
    pub attempt: String,
    /// Rounds that began from a checkpoint.
    pub restarts: u32,
    /// Failures without a step between them.
    pub failures: u32,
    /// No worker has a higher number.
    pub workers: u32,
    /// Into so many each micro-batch is cut.
    pub split: u32,
    /// What people asked for, and how often anybody did: who was told more knows better.
    pub wishes: u64,
    /// Workers wanted by `enn resize`; `None`: as many as the nodes have room for.
    pub resized: Option<u32>,
    /// The run is paused.
    pub paused: bool,
    /// Hosts that the workers are to leave.
    pub leaving: Vec<String>,
    /// The run is to save and end, as after this signal. Nobody takes that back.
    pub stop: Option<String>,
    /// The host that led, if it has left the run: its workers left their round with the others, and nothing failed.
    pub drained: Option<String>,
}

/// A wish on a control page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wish {
    /// Finish the step, checkpoint and end.
    Stop,
    /// Finish the step and leave the round.
    Regroup,
}

/// A node as it introduces itself to the head.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Here {
    /// Membership of the rendezvous it speaks of.
    pub membership: u64,
    pub host: String,
    /// Workers it runs when none is missing, and those it has room for.
    pub room: u32,
    pub room_max: u32,
    /// Workers that live on it.
    pub workers: Vec<Living>,
    /// What the head before told it last.
    pub standing: Option<Standing>,
}

/// A worker that lives when a head takes over.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Living {
    pub worker: u32,
    pub pid: u32,
    /// Index on its node.
    pub local_rank: u32,
    /// Its seat in the last round.
    pub seat: Option<LivingSeat>,
    /// It introduced itself.
    pub joined: bool,
    /// It has loaded what it can without a seat.
    pub warm: bool,
    /// It has the state of training.
    pub stateful: bool,
}

/// The seat of such a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LivingSeat {
    pub rank: u32,
    /// Whole steps after which it stands, if it left the round.
    pub halted: Option<u64>,
    /// Of the state it has no more than this share of so many.
    pub share: Option<(u32, u32)>,
}

impl LivingSeat {
    /// A seat whose round is on.
    pub fn new(rank: u32) -> Self {
        Self { rank, halted: None, share: None }
    }
}

/// How a worker process ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct End {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    /// Time from its end to the notice.
    pub late: Duration,
    /// End of its standard error.
    pub stderr: String,
    /// Its control page.
    pub glance: Glance,
    /// The kernel that was running for the first time: operation, kernel, signature, operands.
    pub intent: Option<(String, String, u64, String)>,
}

/// A control page, as far as a head looks at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Glance {
    pub worker: u32,
    /// Number of the phase.
    pub phase: u32,
    pub step: u64,
    pub waited_ns: u64,
    /// Time since its last sign of progress.
    pub silent: Duration,
}

/// How a run ended, for its hands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// Every worker finished its work.
    Finished,
    /// By a signal of this name; the newest checkpoint stands.
    Stopped { signal: String },
    /// A worker failed for good, or the head could not go on.
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
        assert_eq!(bytes(&Order::Wish { worker: 1, wish: Wish::Regroup, wanted: true }), [4, 0, 0, 0, 10, 1, 1, 1]);
        let mut out = Vec::new();
        frame::encode(&Report::Synced { worker: 9 }, &mut out).unwrap();
        assert_eq!(out, [2, 0, 0, 0, 9, 9]);
        let standing = Standing { round: 3, wishes: 2, paused: true, stop: Some("a".into()), ..Standing::default() };
        let standing = bytes(&Order::Standing(Box::new(standing)));
        assert_eq!(standing, [15, 0, 0, 0, 15, 3, 0, 0, 0, 0, 0, 2, 0, 1, 0, 1, 1, b'a', 0]);
    }
}
