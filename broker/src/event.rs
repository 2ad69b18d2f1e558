//! Events from the broker to the agent and commands from the agent to the broker.

use enn_common::{
    id::{Round, WorkerId},
    wire::message::{Assignment, FromWorker, Standby, ToWorker},
};
use std::collections::BTreeMap;

/// Events that the broker reports to the agent.
#[derive(Debug, Clone, PartialEq)]
pub enum BrokerEvent {
    /// An expected worker sent Hello. It received its seat, if the round has one for it, or was told to stand by.
    Joined {
        worker: WorkerId,
        /// Process id, as the worker states it.
        pid: u32,
    },
    /// A worker sent a message (never `Hello`: the broker handles that).
    Reported {
        /// The round that the worker was in when it sent the message; `None` before its first.
        round: Option<Round>,
        worker: WorkerId,
        message: FromWorker,
    },
    /// A worker's connection ended; the error is set when it broke the protocol.
    Left { worker: WorkerId, error: Option<String> },
    /// A connection was refused.
    Refused { error: String },
    /// Every message that had arrived when `Command::Sync` was taken has been reported.
    Synced {
        /// Token of the `Sync` command.
        token: u64,
    },
    /// The event loop failed and the broker is of no more use.
    Broke { error: String },
}

/// The seats of a round.
#[derive(Debug, Clone, PartialEq)]
pub struct RoundPlan {
    pub round: Round,
    /// Assignment of each worker of the round. Their `rank`s are the round's ranks on this node.
    pub seats: BTreeMap<WorkerId, Assignment>,
}

/// Commands from the agent to the broker.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Admits this worker when it connects. Without a seat in the round it is told to stand by.
    Expect {
        worker: WorkerId,
        /// Preparation of a spare; `None`: a worker without a seat is only admitted.
        standby: Option<Box<Standby>>,
    },
    /// Gives these workers their seats, now or when they connect. The rest of the round before is forgotten.
    BeginRound(Box<RoundPlan>),
    /// Tells the workers of the round that it is over. They stay connected.
    EndRound {
        /// Reason, for people.
        reason: String,
    },
    /// Closes a worker's connection and admits it no more.
    Dismiss { worker: WorkerId },
    /// Closes all connections and admits no more workers.
    CloseAll,
    /// Sends a message to every worker with a seat in the round.
    TellAll(Box<ToWorker>),
    /// Reads all bytes that have arrived, then reports `Synced`.
    Sync {
        /// Token of the `Synced` event.
        token: u64,
    },
    /// Ends the broker's thread.
    Shutdown,
}
