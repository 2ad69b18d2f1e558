//! Why a launcher cannot go on. A worker's failure is an outcome, not an error.

use crate::rendezvous::RendezvousError;
use enn_broker::{BrokerError, tcpstore::StoreError};
use enn_process::logs::LogError;
use std::{io, path::PathBuf};

/// The machine refused something that the launcher needs.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The key-value store in which the ranks meet.
    #[error("cannot start the store in which the workers meet: {0}")]
    Store(#[from] StoreError),
    /// A worker cannot be started.
    #[error("cannot start worker {program}: {source}")]
    Spawn { program: PathBuf, source: io::Error },
    /// A log file cannot be made.
    #[error("cannot make the log {path}: {source}")]
    Log { path: PathBuf, source: io::Error },
    /// Output of programs.
    #[error(transparent)]
    Logs(#[from] LogError),
    /// The meeting of the nodes.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// A descriptor, thread or handler that the launcher works with.
    #[error("cannot {what}: {source}")]
    System { what: &'static str, source: io::Error },
    /// The checkpoints of the run cannot be used.
    #[error("cannot prepare the run's checkpoints: {error}")]
    Checkpoints {
        error: String,
        /// There are checkpoints, and none of them is whole.
        none_whole: bool,
    },
    /// The loop of a node that took over ended while another thread led for it.
    #[error("this node leads the run no more")]
    LeadLost,
}

impl AgentError {
    /// Returns whether the run has checkpoints and none of them is whole.
    pub fn is_none_whole(&self) -> bool {
        matches!(self, Self::Checkpoints { none_whole: true, .. })
    }
}
