//! What can go wrong between ranks.

use std::time::Duration;
use thiserror::Error;

/// A failure of a store operation or a collective. `message` is libtorch's own sentence.
#[derive(Debug, Error)]
pub enum CommError {
    /// No connection to the store.
    #[error(
        "no connection to the store at {host}:{port} within {timeout:?}: {message}\nhint: the launcher serves it; is it alive, and does {host} reach it?"
    )]
    Connect {
        /// Host asked for.
        host: String,
        /// Port asked for.
        port: u16,
        /// Limit of the attempt.
        timeout: Duration,
        /// Libtorch's sentence.
        message: String,
    },
    /// A store operation failed.
    #[error("store operation {operation} on key {key:?} failed: {message}")]
    Store {
        /// Operation, as in the protocol.
        operation: &'static str,
        /// Key without its prefix.
        key: String,
        /// Libtorch's sentence.
        message: String,
    },
    /// The ranks did not come together.
    #[error("rank {rank} of {size} could not form the {backend} process group: {message}")]
    Form {
        /// "gloo" or "nccl".
        backend: &'static str,
        /// Rank of this process.
        rank: u32,
        /// Ranks expected.
        size: u32,
        /// Libtorch's sentence.
        message: String,
    },
    /// A collective failed, most often because a peer died.
    #[error("{operation} failed on rank {rank} of {size}: {message}\nhint: a peer probably died; its own log says why")]
    Collective {
        /// Collective.
        operation: &'static str,
        /// Rank of this process.
        rank: u32,
        /// Ranks in the group.
        size: u32,
        /// Libtorch's sentence.
        message: String,
    },
    /// A collective, or ending the group, took longer than allowed.
    #[error(
        "{operation} on rank {rank} of {size} did not end within {timeout:?}\nhint: a peer hangs, or ranks called different collectives"
    )]
    TimedOut {
        /// Collective, "shutdown" or "abort".
        operation: &'static str,
        /// Rank of this process.
        rank: u32,
        /// Ranks in the group.
        size: u32,
        /// Limit that passed.
        timeout: Duration,
    },
    /// A tensor c10d cannot take.
    #[error("{operation} needs a defined, dense, contiguous tensor, found {found}")]
    Tensor {
        /// Collective.
        operation: &'static str,
        /// What is wrong with it.
        found: &'static str,
    },
    /// A root that is no rank.
    #[error("broadcast root {root} is outside 0..{size}")]
    RootOutside {
        /// Root asked for.
        root: u32,
        /// Ranks in the group.
        size: u32,
    },
    /// A string for C held a NUL byte.
    #[error("{what} holds a NUL byte: {text:?}")]
    Nul {
        /// Host, prefix or key.
        what: &'static str,
        /// The string.
        text: String,
    },
}
