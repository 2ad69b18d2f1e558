//! What can go wrong while a run is recorded or read back.

use std::{io, path::PathBuf};
use thiserror::Error;

/// Why the journal, events.jsonl, cannot be read or written.
#[derive(Debug, Error)]
pub enum JournalError {
    #[error("cannot open the run's journal {}: {source}\n  hint: is this a run directory, and may you {what} it?", path.display())]
    Open { path: PathBuf, what: &'static str, source: io::Error },
    #[error("cannot read the run's journal {} after line {line}: {source}", path.display())]
    Read {
        path: PathBuf,
        /// Lines read before the failure.
        line: u64,
        source: io::Error,
    },
    /// An event could not be appended; the events before it are whole.
    #[error("cannot append to the run's journal {}: {source}\n  hint: training goes on without it; is the disk full?", path.display())]
    Write { path: PathBuf, source: io::Error },
}

#[derive(Debug, Error)]
pub enum TopError {
    /// Input or output is no terminal, or only takes text.
    #[error(
        "enn top needs a terminal that it can draw on: one for input and output, and not TERM=dumb\nhint: `enn status --watch` needs none"
    )]
    NoTerminal,
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("cannot {what}: {source}")]
    System { what: &'static str, source: io::Error },
    #[error(
        "cannot serve the page on port {port} of 127.0.0.1: {source}{}\nhint: `--port 0` takes a free port",
        user.as_ref().map_or_else(String::new, |user| format!(" (by {user})"))
    )]
    Port {
        port: u16,
        /// The program that listens on the port, if this user may know it.
        user: Option<String>,
        source: io::Error,
    },
}

#[derive(Debug, Error)]
pub enum MetricsError {
    #[error(
        "\"{text}\" is no address for metrics\nhint: a port such as 9400 (this host only), or an address and a port such as 0.0.0.0:9400"
    )]
    Address { text: String },
    #[error("cannot serve metrics on {address}: {source}\nhint: choose another port, or 0 for any free one")]
    Listen { address: std::net::SocketAddr, source: io::Error },
}

#[derive(Debug, Error)]
pub enum KernelsError {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{}: {source}", path.display())]
    Json { path: PathBuf, source: serde_json::Error },
    #[error("{} has version {found}, expected {}", path.display(), enn_common::kernels::VERSION)]
    Version { path: PathBuf, found: u32 },
}
