//! Errors at the start of a rendezvous. A later error ends the run: `Notification::RunEnded` reports it.

use enn_broker::tcpstore::StoreError;
use std::io;

/// Error at the start of a rendezvous.
#[derive(Debug, thiserror::Error)]
pub enum RendezvousError {
    /// This node leads and cannot listen: the port is taken, or the address belongs to another machine.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The numbers of nodes do not fit together.
    #[error("{found} is no number of nodes for a rendezvous, expected 1 <= MIN <= MAX\nhint: --nnodes N or MIN:MAX")]
    Nodes { found: String },
    /// A fixed rank in a run whose number of nodes may change, or beyond it.
    #[error("node rank {rank} is not possible with {nodes} nodes\nhint: {hint}")]
    Rank { rank: u32, nodes: String, hint: &'static str },
    /// Polling or the thread could not be set up.
    #[error("failed to start the rendezvous' {what}: {source}")]
    System { what: &'static str, source: io::Error },
}
