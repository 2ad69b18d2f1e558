//! Errors of the broker itself. A worker's misbehaviour is an event, not an error.

use enn_common::fs::FileError;
use std::{io, path::PathBuf};

/// The broker cannot start, or its thread has ended.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    #[error("cannot make the folder of seats: {0}")]
    Seats(#[from] FileError),
    #[error("cannot make the socket directory {path}: {source}")]
    Directory { path: PathBuf, source: io::Error },
    /// The socket cannot be bound; its path may be longer than the 107 bytes that Unix allows.
    #[error("cannot listen on {path}: {source}")]
    Listen { path: PathBuf, source: io::Error },
    #[error("cannot set up the broker's event loop: {0}")]
    Loop(#[source] io::Error),
    #[error("the broker thread does not answer")]
    Gone,
}
