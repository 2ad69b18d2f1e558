//! Why a rendezvous could not be started. What goes wrong later ends the run and is told as `News::RunEnded`.

use enn_broker::tcpstore::StoreError;
use std::io;

/// The rendezvous could not be started.
#[derive(Debug, thiserror::Error)]
pub enum RendezvousError {
    /// This node hosts the rendezvous and cannot listen: the port is taken, the address is not its own.
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
