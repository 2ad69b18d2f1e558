//! What can go wrong with the output of the workers.

use super::Wanted;
use std::{io, path::PathBuf};

/// The output of a worker cannot go where it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// A directory of logs.
    #[error("cannot make the log directory {}: {source}\n  hint: choose another place with --log-dir", path.display())]
    Directory { path: PathBuf, source: io::Error },
    /// A log file; the worker goes on without it.
    #[error("cannot write the log {}: {source}\n  hint: is the disk full? the workers go on without this file", path.display())]
    File { path: PathBuf, source: io::Error },
    /// Copies of the output that nobody asked for; the workers go on without them.
    #[error(
        "the copies of the workers' output have reached {max} bytes and are not continued, {} neither\n  hint: --keep-size \
         allows more, --log-dir with --tee 3 keeps everything",
        path.display()
    )]
    CopiesFull {
        /// Most bytes of all copies.
        max: u64,
        /// The copy that is not continued.
        path: PathBuf,
    },
    /// The console; the workers go on without it.
    #[error(
        "cannot write the workers' output to {name}: {source}\n  hint: the workers go on; their output is still in the log files, if any"
    )]
    Console {
        /// "standard output" or "standard error".
        name: &'static str,
        source: io::Error,
    },
    /// A pipe, descriptor or thread.
    #[error(
        "cannot {what} for the workers' output: {source}\n  hint: `ulimit -n` limits open files, two for each worker and some more"
    )]
    System { what: &'static str, source: io::Error },
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
    Twice { rank: u32, given: String },
}

/// Logs of a run that cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum LogReadError {
    /// Nothing that was asked for.
    #[error("no logs of {} in {}{}", asked(wanted), root.display(), known(attempts, ranks))]
    None {
        /// Where they were looked for.
        root: PathBuf,
        /// What was asked for.
        wanted: Wanted,
        /// Attempts that are there.
        attempts: Vec<u32>,
        /// Ranks that are there in the attempts that were asked for.
        ranks: Vec<u32>,
    },
    /// A log file.
    #[error("cannot read the log {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// The system does not tell of changes.
    #[error(
        "cannot watch the logs: {0}\n  hint: the limits fs.inotify.max_user_watches and max_user_instances may be reached; leave out --follow"
    )]
    Watch(#[source] io::Error),
    /// Whoever was to get the lines.
    #[error("cannot write to standard output: {0}")]
    Output(#[source] io::Error),
}

fn asked(wanted: &Wanted) -> String {
    let stream = match (wanted.out, wanted.err) {
        (true, false) => "standard output",
        (false, true) => "standard error",
        _ => "workers",
    };
    let ranks: Vec<String> = wanted.ranks.iter().map(ToString::to_string).collect();
    let ranks = if ranks.is_empty() { String::new() } else { format!(" of rank {}", ranks.join(", ")) };
    let attempt = wanted.attempt.map(|attempt| format!(" in attempt {attempt}")).unwrap_or_default();
    format!("{stream}{ranks}{attempt}")
}

fn known(attempts: &[u32], ranks: &[u32]) -> String {
    let list = |numbers: &[u32]| numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match (attempts, ranks) {
        ([], _) => "\n  hint: output that is neither redirected nor teed is only on the console".into(),
        (attempts, []) => format!("\n  hint: there are attempts: {}", list(attempts)),
        (_, ranks) => format!("\n  hint: there are ranks: {}", list(ranks)),
    }
}
