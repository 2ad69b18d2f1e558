//! The language between the broker and the agent: events up, commands down. Both lists are closed.

use enn_common::{
    checkpoint::table::ShardTable,
    id::{LocalRank, Round},
    wire::message::{Assignment, FromWorker, ToWorker},
};
use std::path::PathBuf;

/// What the broker saw. Past tense.
#[derive(Debug, Clone, PartialEq)]
pub enum BrokerEvent {
    /// A worker introduced itself, fits, and got its assignment.
    Joined {
        /// Round.
        round: Round,
        /// Worker.
        worker: LocalRank,
        /// Process, as the worker says.
        pid: u32,
    },
    /// A worker said something (never `Hello`, `ShardWritten` or `ShardFailed`: those are handled here).
    Reported {
        /// Round.
        round: Round,
        /// Worker.
        worker: LocalRank,
        /// What it said.
        message: FromWorker,
    },
    /// All ranks wrote their shard of a step: the checkpoint can be committed.
    ShardsWritten {
        /// Round.
        round: Round,
        /// The shards.
        shards: ShardSet,
    },
    /// A step's checkpoint cannot be completed; the workers were told.
    ShardsAbandoned {
        /// Round.
        round: Round,
        /// Step.
        step: u64,
        /// Why.
        error: String,
    },
    /// A worker's connection ended; with an error when it broke the protocol.
    Left {
        /// Round.
        round: Round,
        /// Worker.
        worker: LocalRank,
        /// What was wrong, if anything.
        error: Option<String>,
    },
    /// Somebody was turned away.
    Refused {
        /// Why.
        error: String,
    },
    /// Everything that had arrived when `Command::Sync` was taken has been reported.
    Synced {
        /// The command's token.
        token: u64,
    },
    /// The event loop broke and the broker is of no more use.
    Broke {
        /// Why.
        error: String,
    },
}

/// The shards of one step, one table per rank in rank order.
#[derive(Debug, Clone, PartialEq)]
pub struct ShardSet {
    /// Step.
    pub step: u64,
    /// Epoch.
    pub epoch: u64,
    /// The temporary directory all ranks wrote in.
    pub dir: PathBuf,
    /// Validation metric, when a rank had one.
    pub metric: Option<f64>,
    /// Tables.
    pub tables: Vec<ShardTable>,
}

/// Who is expected in a round and what each is told.
#[derive(Debug, Clone, PartialEq)]
pub struct RoundPlan {
    /// Round.
    pub round: Round,
    /// Indexed by local rank.
    pub assignments: Vec<Assignment>,
}

/// What the agent wants. Imperative.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Forget the last round, expect these workers.
    BeginRound(Box<RoundPlan>),
    /// Close all connections; workers of the round that still come are refused.
    EndRound,
    /// Send to every worker of the round.
    TellAll(Box<ToWorker>),
    /// Read all that has arrived, then report `Synced`.
    Sync {
        /// Comes back in the event.
        token: u64,
    },
    /// End the thread.
    Shutdown,
}
