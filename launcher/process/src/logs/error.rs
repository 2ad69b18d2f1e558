//! What can go wrong with the output of the workers.

use super::selection::LogSelection;
use std::{io, path::PathBuf};

/// Why the output of a worker cannot be captured or shown.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("cannot make the log directory {}: {source}\n  hint: choose another place with --log-dir", path.display())]
    Directory { path: PathBuf, source: io::Error },
    /// A log file cannot be written. The worker goes on without it.
    #[error("cannot write the log {}: {source}\n  hint: is the disk full? the workers go on without this file", path.display())]
    File { path: PathBuf, source: io::Error },
    /// The copies of the output that no flag asked for are full. The workers go on without them.
    #[error(
        "the copies of the workers' output have reached {max} bytes and are not continued, {} neither\n  hint: --keep-size \
         allows more, --log-dir with --tee 3 keeps everything",
        path.display()
    )]
    CopiesFull { max: u64, path: PathBuf },
    /// A console cannot be written. The workers go on without it.
    #[error(
        "cannot write the workers' output to {name}: {source}\n  hint: the workers go on; their output is still in the log files, if any"
    )]
    Console {
        /// "standard output" or "standard error".
        name: &'static str,
        source: io::Error,
    },
    #[error(
        "cannot {what} for the workers' output: {source}\n  hint: `ulimit -n` limits open files, two for each worker and some more"
    )]
    System { what: &'static str, source: io::Error },
    #[error("the thread that reads the workers' output ended before its time")]
    Gone,
}

/// Why the logs of a run cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum LogReadError {
    #[error("no logs of {} in {}{}", asked(wanted), root.display(), known(attempts, ranks))]
    None {
        root: PathBuf,
        wanted: LogSelection,
        attempts: Vec<u32>,
        /// Ranks that have logs in the selected attempts.
        ranks: Vec<u32>,
    },
    #[error("cannot read the log {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error(
        "cannot watch the logs: {0}\n  hint: the limits fs.inotify.max_user_watches and max_user_instances may be reached; leave out --follow"
    )]
    Watch(#[source] io::Error),
    #[error("cannot write to standard output: {0}")]
    Output(#[source] io::Error),
}

fn asked(wanted: &LogSelection) -> String {
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
