//! The language between the broker and the agent: events up, commands down. Both lists are closed.

use enn_common::{
    id::{Round, WorkerId},
    wire::message::{Assignment, FromWorker, Standby, ToWorker},
};
use std::collections::BTreeMap;

/// What the broker saw. Past tense.
#[derive(Debug, Clone, PartialEq)]
pub enum BrokerEvent {
    /// An expected worker introduced itself. It got its seat, if the round has one for it, or was told to stand by.
    Joined {
        worker: WorkerId,
        /// Process, as the worker says.
        pid: u32,
    },
    /// A worker said something (never `Hello`: that is handled here).
    Reported {
        /// The round that the worker was in when it said so; `None` before its first.
        round: Option<Round>,
        worker: WorkerId,
        /// What it said.
        message: FromWorker,
    },
    /// A worker's connection ended; with an error when it broke the protocol.
    Left {
        worker: WorkerId,
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

/// The seats of a round.
#[derive(Debug, Clone, PartialEq)]
pub struct RoundPlan {
    pub round: Round,
    /// What each worker of the round is told. Their `rank`s are the round's ranks on this node.
    pub seats: BTreeMap<WorkerId, Assignment>,
}

/// What the agent wants. Imperative.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Let this worker in when it comes. Without a seat in the round it is told to stand by.
    Expect {
        worker: WorkerId,
        /// What a spare prepares for; `None`: without a seat it is only let in.
        standby: Option<Box<Standby>>,
    },
    /// Give these workers their seats, now or when they come. What is left of the round before is forgotten.
    BeginRound(Box<RoundPlan>),
    /// Tell the workers of the round that it is over. They stay connected.
    EndRound {
        /// Why, for people.
        reason: String,
    },
    /// Close a worker's connection, and let it in no more.
    Dismiss { worker: WorkerId },
    /// Close all connections, and let nobody in any more.
    CloseAll,
    /// Send to every worker with a seat in the round.
    TellAll(Box<ToWorker>),
    /// Read all that has arrived, then report `Synced`.
    Sync {
        /// Comes back in the event.
        token: u64,
    },
    /// End the thread.
    Shutdown,
}
