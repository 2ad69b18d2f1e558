//! Why the group itself cannot go on. A worker's failure is an outcome, not an error.

use crate::rendezvous::RendezvousError;
use enn_process::logs::LogError;
use std::io;

/// The machine refused something the launcher needs, or the nodes cannot meet.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// Output of the workers.
    #[error(transparent)]
    Logs(#[from] LogError),
    /// The meeting of the nodes.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// A descriptor, process or handler the launcher works with.
    #[error("cannot {what}: {source}")]
    System { what: &'static str, source: io::Error },
}
