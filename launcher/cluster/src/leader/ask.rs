//! The client of a run's control server.

use super::control::CONTROL_FILE;
use enn_common::wire::command::{Answer, LINE_BYTES_MAX, Request};
use std::{
    fs,
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::{fs::MetadataExt, net::UnixStream},
    path::{Path, PathBuf},
    time::Duration,
};

/// Longest wait for an answer.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(20);

/// Why a run did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// No launcher works in the run.
    #[error("the run {} is not under way (`enn status` tells how it ended; `enn train --resume` goes on with it)", run.display())]
    NotRunning { run: PathBuf },
    /// The run has no control server: it is of another kind, or has not begun its work.
    #[error(
        "the run {} takes no requests: its workers are not started yet, or it is no training of enn train; Ctrl-C where it was started, \
         or SIGTERM to its process, ends it all the same",
        run.display()
    )]
    NoControlServer { run: PathBuf },
    /// Another user's run.
    #[error("the run {} belongs to user {owner}; only that user may ask it for something", run.display())]
    Foreign { run: PathBuf, owner: u32 },
    /// The leader is on another host.
    #[error(
        "the run {} is led by host {host}; ask for it there (when that host is gone another node leads within seconds, or the run \
         ends: ask again)",
        run.display()
    )]
    Elsewhere { run: PathBuf, host: String },
    /// The leader was lost before it answered.
    #[error("the run {} ended before it answered (`enn status` tells how)", run.display())]
    Unanswered { run: PathBuf },
    /// The leader does nothing.
    #[error(
        "the run {} did not answer within {} s; what was asked for may still be done (`enn status` tells)",
        run.display(),
        ANSWER_WAIT_MAX.as_secs()
    )]
    Silent { run: PathBuf },
    /// The leader is gone, and no other node leads the run.
    #[error(
        "the node that led the run {} is gone, and none of its other nodes has taken over within {waited} s (`enn status` tells \
         what was there; `enn train --resume` goes on with it once nobody works in it)",
        run.display()
    )]
    Leaderless { run: PathBuf, waited: u64 },
    #[error("refused: {reason}")]
    Refused { reason: String },
    /// The control socket does not work.
    #[error("cannot ask the run through {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    /// The answer is of another version.
    #[error("the run answered \"{found}\", expected an answer of this version of enn")]
    Answer { found: String },
}

/// The knowledge of the sender of a request.
#[derive(Debug, Clone, Copy)]
pub struct Asker<'a> {
    /// A launcher holds the lock of the run directory.
    pub run_is_living: bool,
    pub host: &'a str,
}

impl AskError {
    /// Returns whether no leader answers: of a run of several nodes another one may open its own control server.
    pub fn is_absence(&self) -> bool {
        matches!(self, Self::NotRunning { .. } | Self::NoControlServer { .. } | Self::Unanswered { .. })
    }
}

/// Sends a request to the leader of `run`; returns the sentence with which it accepted.
///
/// # Errors
/// It is not under way, not ours, said no, or cannot be reached.
pub fn ask(run: &Path, request: &Request, asker: Asker<'_>) -> Result<String, AskError> {
    let Asker { run_is_living: living, host: here } = asker;
    let owner = fs::metadata(run).map_err(io_error(run))?.uid();
    if owner != nix::unistd::geteuid().as_raw() {
        return Err(AskError::Foreign { run: run.to_owned(), owner });
    }
    let run_owned = || run.to_owned();
    let absent = || {
        if living { AskError::NoControlServer { run: run_owned() } } else { AskError::NotRunning { run: run_owned() } }
    };
    let file = run.join(CONTROL_FILE);
    let (socket, host) = match fs::read_to_string(&file) {
        Ok(text) => {
            let mut lines = text.lines().map(str::to_owned);
            (PathBuf::from(lines.next().unwrap_or_default()), lines.next().unwrap_or_default())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(absent()),
        Err(error) => return Err(io_error(&file)(error)),
    };
    let stream = match UnixStream::connect(&socket) {
        Ok(stream) => stream,
        Err(error) if error.kind() == io::ErrorKind::NotFound && living && !host.is_empty() && host != here => {
            return Err(AskError::Elsewhere { run: run_owned(), host });
        }
        // A launcher that was killed leaves the file. It was on this machine when it leaves the socket, too.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            return Err(AskError::NotRunning { run: run_owned() });
        }
        Err(error) => return Err(io_error(&socket)(error)),
    };
    let line = match exchange(&stream, request) {
        Ok(line) => line,
        Err(error) => match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => return Err(AskError::Silent { run: run_owned() }),
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Vec::new(),
            _ => return Err(io_error(&socket)(error)),
        },
    };
    match serde_json::from_slice(&line) {
        _ if line.is_empty() => Err(AskError::Unanswered { run: run_owned() }),
        Ok(Answer::Accepted { says }) => Ok(says),
        Ok(Answer::Refused { reason }) => Err(AskError::Refused { reason }),
        Err(_) => Err(AskError::Answer { found: String::from_utf8_lossy(&line).trim_end().to_owned() }),
    }
}

fn exchange(mut stream: &UnixStream, request: &Request) -> io::Result<Vec<u8>> {
    stream.set_read_timeout(Some(ANSWER_WAIT_MAX))?;
    stream.set_write_timeout(Some(ANSWER_WAIT_MAX))?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut answer = Vec::new();
    BufReader::new(stream.take(LINE_BYTES_MAX as u64)).read_until(b'\n', &mut answer)?;
    Ok(answer)
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> AskError {
    let path = path.to_owned();
    move |source| AskError::Io { path, source }
}
