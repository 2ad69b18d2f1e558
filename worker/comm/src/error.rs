//! Errors of communication between ranks.

use std::time::Duration;
use thiserror::Error;

/// A failure of a store operation or a collective. `message` is that of libtorch.
#[derive(Debug, Error)]
pub enum CommError {
    /// No connection to the store.
    #[error(
        "no connection to the store at {host}:{port} within {timeout:?}: {message}\nhint: the launcher serves it; is it alive, and does {host} reach it?"
    )]
    Connect {
        host: String,
        port: u16,
        /// Limit of the attempt.
        timeout: Duration,
        message: String,
    },
    /// A store operation failed.
    #[error("store operation {operation} on key {key:?} failed: {message}")]
    Store {
        /// Operation, as in the protocol.
        operation: &'static str,
        /// Key without its prefix.
        key: String,
        message: String,
    },
    /// The process group could not be formed.
    #[error("rank {rank} of {size} could not form the {backend} process group: {message}")]
    Form {
        /// "shm", "gloo" or "nccl".
        backend: &'static str,
        /// Rank of this process.
        rank: u32,
        size: u32,
        message: String,
    },
    /// A collective failed, most often because a peer died.
    #[error("{operation} failed on rank {rank} of {size}: {message}\nhint: a peer probably died; its own log says why")]
    Collective {
        operation: &'static str,
        /// Rank of this process.
        rank: u32,
        /// Ranks in the group.
        size: u32,
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
        timeout: Duration,
    },
    /// A peer is no longer there.
    #[error(
        "{operation} on rank {rank} of {size} cannot end: its peer, rank {peer}, {what}\nhint: rank {peer}'s own log says why"
    )]
    PeerLost {
        operation: &'static str,
        /// Rank of this process.
        rank: u32,
        /// Ranks in the group.
        size: u32,
        /// The lost rank.
        peer: u32,
        /// Why it is gone, as a predicate, e.g. "died".
        what: &'static str,
    },
    /// A peer did not come to a collective in time.
    #[error(
        "{operation} on rank {rank} of {size}: its peer, rank {peer}, did not come within {timeout:?}\nhint: rank {peer} hangs, or is that much slower"
    )]
    PeerSilent {
        operation: &'static str,
        /// Rank of this process.
        rank: u32,
        /// Ranks in the group.
        size: u32,
        /// The rank that was waited for.
        peer: u32,
        timeout: Duration,
    },
    /// Two ranks called different collectives.
    #[error(
        "rank {rank} of {size} called {mine}, and rank {peer} called {theirs}\nhint: every rank must call the same collectives in the same order"
    )]
    OutOfStep {
        /// Rank of this process.
        rank: u32,
        /// Ranks in the group.
        size: u32,
        /// The rank that differs.
        peer: u32,
        /// Collective that this rank called.
        mine: String,
        /// Collective that the other rank called.
        theirs: String,
    },
    /// This rank aborted the group while the collective was in flight.
    #[error("{operation} on rank {rank} of {size} was aborted: this rank ended the group")]
    Aborted {
        operation: &'static str,
        /// Rank of this process.
        rank: u32,
        /// Ranks in the group.
        size: u32,
    },
    /// A kind of number the group cannot add up.
    #[error("{operation} over {backend} found {found:?}, expected Float, Double, Int64, BFloat16 or Half")]
    Kind {
        operation: &'static str,
        backend: &'static str,
        /// Kind of the tensor.
        found: tch::Kind,
    },
    /// A tensor a collective cannot take.
    #[error("{operation} needs a defined, dense, contiguous tensor, found {found}")]
    Tensor {
        operation: &'static str,
        /// Description of the tensor, e.g. "a sparse one".
        found: &'static str,
    },
    /// A root that is no rank.
    #[error("broadcast root {root} is outside 0..{size}")]
    RootOutside {
        root: u32,
        /// Ranks in the group.
        size: u32,
    },
    /// The ranks cannot be divided by node.
    #[error("{size} ranks over {backend} cannot be divided into nodes of {ranks}")]
    NoMesh {
        /// Backend of the process group.
        backend: &'static str,
        size: u32,
        /// Ranks of a node.
        ranks: u32,
    },
    /// A string for C held a NUL byte.
    #[error("{what} holds a NUL byte: {text:?}")]
    Nul {
        /// Host, prefix or key.
        what: &'static str,
        text: String,
    },
}
