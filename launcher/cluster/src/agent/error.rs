//! Why the agent itself cannot go on. A worker's failure is an outcome, not an error.

use enn_broker::{BrokerError, tcpstore::StoreError};
use enn_common::checkpoint::listing::FindError;
use std::{io, path::PathBuf};

/// The machine refused something the agent needs.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The key-value store in which the ranks meet.
    #[error("cannot start the store in which the workers meet: {0}")]
    Store(#[from] StoreError),
    /// The broker's thread broke while running.
    #[error("the broker broke: {0}")]
    BrokerBroke(String),
    /// A worker cannot be started.
    #[error("cannot start worker {program}: {source}")]
    Spawn { program: PathBuf, source: io::Error },
    /// A log file cannot be made.
    #[error("cannot make the log {path}: {source}")]
    Log { path: PathBuf, source: io::Error },
    /// A descriptor, thread or handler the agent works with.
    #[error("cannot {what}: {source}")]
    System { what: &'static str, source: io::Error },
    /// The checkpoints of the run cannot be looked at.
    #[error("cannot prepare the run's checkpoints: {0}")]
    Checkpoints(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The thread that commits checkpoints is gone.
    #[error("the thread that commits checkpoints ended")]
    Committer,
}

impl AgentError {
    /// Whether the run has checkpoints and none of them is whole.
    pub fn is_none_whole(&self) -> bool {
        matches!(self, Self::Checkpoints(error) if error.is::<FindError>())
    }
}
