//! Events from the broker to the agent and commands from the agent to the broker.

use enn_common::{
    id::{Round, WorkerId},
    wire::{
        control::Phase,
        message::{Assignment, FromWorker, Standby, ToWorker},
    },
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
    /// What the control page of a worker would show that is a script: it has none.
    Progressed { worker: WorkerId, phase: Phase, step: u64 },
    /// A worker's connection ended; the error is set when it broke the protocol.
    Left { worker: WorkerId, error: Option<String> },
    /// A connection was refused.
    Refused { error: String },
    /// Every message that had arrived when `Command::Sync` was taken has been reported.
    Synced { token: u64 },
    /// The event loop failed and the broker is of no more use.
    Broke { error: String },
}

#[derive(Debug, Clone, PartialEq)]
pub struct RoundPlan {
    pub round: Round,
    /// Assignment of each worker of the round. Their `rank`s are the round's ranks on this node.
    pub seats: BTreeMap<WorkerId, Assignment>,
}

/// Commands from the agent to the broker.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Admit a worker when it connects. Comes before its start. Without a seat it is told to stand by, when `standby` is set.
    Expect { worker: WorkerId, standby: Option<Box<Standby>> },
    /// Give the plan's workers their seats, now or when they connect.
    BeginRound(Box<RoundPlan>),
    /// Tell the round's workers that it is over: they leave it and stay connected.
    EndRound { reason: String },
    /// Tell one worker to end, and close its connection.
    Dismiss { worker: WorkerId },
    /// Ask a worker that is a script to finish its step, save and end, now or when it attaches.
    StopScript { worker: WorkerId },
    /// Close all connections, save for those of scripts that wait for a seat: the workers end themselves.
    CloseAll,
    /// Send a message to every worker with a seat in the round.
    TellAll(Box<ToWorker>),
    /// Report `Synced` behind everything that has arrived until now.
    Sync { token: u64 },
    /// End the thread.
    Shutdown,
}
