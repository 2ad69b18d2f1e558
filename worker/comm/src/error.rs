//! Errors of communication between ranks.

use std::time::Duration;
use thiserror::Error;

/// A failure of a store operation or a collective. `message` is that of libtorch.
#[derive(Debug, Error)]
pub enum CommError {
    #[error(
        "no connection to the store at {host}:{port} within {timeout:?}: {message}\nhint: the launcher serves it; is it alive, and does {host} reach it?"
    )]
    Connect { host: String, port: u16, timeout: Duration, message: String },
    #[error("store operation {operation} on key {key:?} failed: {message}")]
    Store {
        /// Operation, as in the protocol.
        operation: &'static str,
        /// Key without its prefix.
        key: String,
        message: String,
    },
    #[error("rank {rank} of {size} could not form the {backend} process group: {message}")]
    Form {
        /// "shm", "gloo" or "nccl".
        backend: &'static str,
        rank: u32,
        size: u32,
        message: String,
    },
    #[error("{operation} failed on rank {rank} of {size}: {message}\nhint: a peer probably died; its own log says why")]
    Collective { operation: &'static str, rank: u32, size: u32, message: String },
    #[error(
        "{operation} on rank {rank} of {size} did not end within {timeout:?}\nhint: a peer hangs, or ranks called different collectives"
    )]
    TimedOut {
        /// Collective, "shutdown" or "abort".
        operation: &'static str,
        rank: u32,
        size: u32,
        timeout: Duration,
    },
    #[error(
        "{operation} on rank {rank} of {size} cannot end: its peer, rank {peer}, {what}\nhint: rank {peer}'s own log says why"
    )]
    PeerLost {
        operation: &'static str,
        rank: u32,
        size: u32,
        peer: u32,
        /// Why it is gone, as a predicate, e.g. "died".
        what: &'static str,
    },
    #[error(
        "{operation} on rank {rank} of {size}: its peer, rank {peer}, did not come within {timeout:?}\nhint: rank {peer} hangs, or is that much slower"
    )]
    PeerSilent { operation: &'static str, rank: u32, size: u32, peer: u32, timeout: Duration },
    #[error(
        "rank {rank} of {size} called {mine}, and rank {peer} called {theirs}\nhint: every rank must call the same collectives in the same order"
    )]
    OutOfStep { rank: u32, size: u32, peer: u32, mine: String, theirs: String },
    #[error("{operation} on rank {rank} of {size} was aborted: this rank ended the group")]
    Aborted { operation: &'static str, rank: u32, size: u32 },
    #[error("{operation} over {backend} found {found:?}, expected Float, Double, Int64, BFloat16 or Half")]
    Kind { operation: &'static str, backend: &'static str, found: tch::Kind },
    #[error("{operation} needs a defined, dense, contiguous tensor, found {found}")]
    Tensor {
        operation: &'static str,
        /// Description of the tensor, e.g. "a sparse one".
        found: &'static str,
    },
    #[error("broadcast root {root} is outside 0..{size}")]
    RootOutside { root: u32, size: u32 },
    #[error("{size} ranks over {backend} cannot be divided into nodes of {ranks}")]
    NoMesh { backend: &'static str, size: u32, ranks: u32 },
    #[error("{what} holds a NUL byte: {text:?}")]
    Nul {
        /// Host, prefix or key.
        what: &'static str,
        text: String,
    },
}
