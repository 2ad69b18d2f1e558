//! What can go wrong with the output of the workers.

use std::{io, path::PathBuf};

/// The output of a worker cannot go where it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// A directory of logs.
    #[error("cannot make the log directory {}: {source}\n  hint: choose another place with --log-dir", path.display())]
    Directory {
        /// Directory.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A log file; the worker goes on without it.
    #[error("cannot write the log {}: {source}\n  hint: is the disk full? the workers go on without this file", path.display())]
    File {
        /// File.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The console; the workers go on without it.
    #[error(
        "cannot write the workers' output to {name}: {source}\n  hint: the workers go on; their output is still in the log files, if any"
    )]
    Console {
        /// "standard output" or "standard error".
        name: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// A pipe, descriptor or thread.
    #[error(
        "cannot {what} for the workers' output: {source}\n  hint: `ulimit -n` limits open files, two for each worker and some more"
    )]
    System {
        /// What was tried.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// The thread that reads the output is gone.
    #[error("the thread that reads the workers' output ended before its time")]
    Gone,
}

/// A value of `--redirects` or `--tee` that says nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StdError {
    /// Not a stream.
    #[error("{given:?} names no streams\n  hint: 0 none, 1 stdout, 2 stderr, 3 both; or by local rank as in 0:1,1:3")]
    Stream {
        /// What was found where a number from 0 to 3 belongs.
        given: String,
    },
    /// Not a local rank.
    #[error("{given:?} is no local rank\n  hint: write local rank, colon, streams: 0:1,1:3")]
    Rank {
        /// What was found where a local rank belongs.
        given: String,
    },
    /// The same rank twice.
    #[error("local rank {rank} is given twice in {given:?}\n  hint: write each local rank once")]
    Twice {
        /// Rank.
        rank: u32,
        /// The whole value.
        given: String,
    },
}
