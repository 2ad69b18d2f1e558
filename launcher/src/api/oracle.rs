//! A worker that is asked over pipes (`enn_common::wire::serve`): loaded once, then a question at a time.
//!
//! **Invariant:** every wait for it has an end; it ends with its input, so that it never outlives who asks.

use crate::{Error, agent::WorkerSpec, process};
use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
use enn_common::{
    config::train::{Device, Precision},
    wire::{
        message::PROTOCOL,
        serve::{Begin, Question, Reply, get, get_bytes, get_numbers, put, put_numbers},
    },
};
use nix::poll::{PollFd, PollFlags};
use std::{
    io::{self, BufReader},
    os::{fd::AsFd, unix::process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

/// Longest time to load libtorch and the model, and to answer one question.
const REPLY_WAIT_MAX: Duration = Duration::from_secs(600);
/// Longest time between the end of a worker's output and its own.
const END_WAIT_MAX: Duration = Duration::from_secs(1);

/// The worker.
pub(super) struct Oracle {
    child: Child,
    /// `None` once the worker was told to end.
    questions: Option<ChildStdin>,
    replies: Receiver<io::Result<Heard>>,
    ended: Receiver<()>,
}

/// A reply with what follows it.
struct Heard {
    reply: Reply,
    numbers: Vec<f32>,
    status: Vec<u8>,
}

impl Oracle {
    /// Starts a worker and waits until the model is loaded. What is in `scratch` goes when it ends.
    pub(super) fn start(
        worker: &WorkerSpec,
        checkpoint: &Path,
        precision: Precision,
        scratch: Option<&Path>,
    ) -> Result<Self, Error> {
        let mut command = Command::new(&worker.program);
        command.arg("--serve").stdin(Stdio::piped()).stdout(Stdio::piped());
        // A Ctrl-C is for enn alone: the worker ends with its input, and clears up.
        command.process_group(0);
        command.env("OMP_NUM_THREADS", worker.threads.to_string());
        if let Some(path) = worker.libraries() {
            command.env("LD_LIBRARY_PATH", path);
        }
        let failed = |source| Error::Read { path: worker.program.clone(), source };
        let mut child = command.spawn().map_err(failed)?;
        let (questions, replies) = (child.stdin.take(), child.stdout.take().map(listen));
        let none = || failed(io::Error::from(io::ErrorKind::BrokenPipe));
        let (replies, ended) = replies.ok_or_else(none)?;
        let mut oracle = Self { questions, replies, ended, child };
        let device = if worker.device == Device::Cuda { "cuda" } else { "cpu" }.to_owned();
        let (checkpoint, threads) = (checkpoint.to_owned(), worker.threads);
        let scratch = scratch.map(Path::to_owned);
        oracle.say(&Begin { protocol: PROTOCOL, checkpoint, device, threads, precision, scratch })?;
        match oracle.hear()?.reply {
            Reply::Ready => Ok(oracle),
            other => Err(Error::Worker(format!("the worker said {other:?} before it was asked"))),
        }
    }

    /// Asks for predictions of a staged set; the chunk of the answer below `out`, and its digest.
    pub(super) fn ask(&mut self, staged: &Path, out: &Path) -> Result<(PathBuf, String), Error> {
        self.say(&Question::Staged { staged: staged.to_owned(), out: out.to_owned() })?;
        match self.hear()?.reply {
            Reply::Answered { path, blake3 } => Ok((path, blake3)),
            other => Err(Error::Worker(format!("the worker said {other:?} instead of an answer"))),
        }
    }

    /// Asks for predictions of rows of inputs as they are staged, NaN where missing: the answers row by row, and what became of each
    /// (`RowStatus`).
    pub(super) fn tell(&mut self, x: &[f32], rows: usize) -> Result<(Vec<f32>, Vec<u8>), Error> {
        self.say(&Question::Rows { rows: rows as u64 })?;
        if let Some(questions) = &mut self.questions
            && let Err(error) = put_numbers(questions, x, &[])
        {
            return Err(self.hear().err().unwrap_or_else(|| pipe(error)));
        }
        match self.hear()? {
            Heard { reply: Reply::Told { rows: told, .. }, numbers, status } if told == rows as u64 => {
                Ok((numbers, status))
            }
            Heard { reply, .. } => Err(Error::Worker(format!("the worker said {reply:?} instead of {rows} answers"))),
        }
    }

    /// Is disconnected once the worker has ended.
    pub(super) fn ended(&self) -> &Receiver<()> {
        &self.ended
    }

    /// Lets the worker end.
    pub(super) fn end(mut self) -> Result<(), Error> {
        drop(self.questions.take());
        match self.replies.recv_timeout(REPLY_WAIT_MAX) {
            // It has closed its output, and is about to end.
            Err(RecvTimeoutError::Disconnected) => self.child.wait().map_err(pipe)?,
            _ => return Err(Error::Worker("the worker does not end".to_owned())),
        };
        Ok(())
    }

    fn say<T: serde::Serialize>(&mut self, line: &T) -> Result<(), Error> {
        let Some(questions) = &mut self.questions else { return Err(pipe(io::ErrorKind::BrokenPipe.into())) };
        match put(questions, line) {
            // It has ended: its last words say why.
            Err(error) => Err(self.hear().err().unwrap_or_else(|| pipe(error))),
            Ok(()) => Ok(()),
        }
    }

    /// The next reply that is no warning.
    fn hear(&mut self) -> Result<Heard, Error> {
        loop {
            match self.replies.recv_timeout(REPLY_WAIT_MAX) {
                Ok(Ok(Heard { reply: Reply::Warned { message }, .. })) => tracing::warn!("{message}"),
                Ok(Ok(Heard { reply: Reply::Failed { error }, .. })) => return Err(Error::Worker(error)),
                Ok(Ok(heard)) => return Ok(heard),
                Ok(Err(error)) => return Err(pipe(error)),
                Err(RecvTimeoutError::Timeout) => {
                    return Err(Error::Worker(format!("no answer within {} s", REPLY_WAIT_MAX.as_secs())));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(Error::Worker(self.last_words())),
            }
        }
    }
}

impl Oracle {
    /// What the system says of a worker that has closed its output.
    fn last_words(&mut self) -> String {
        let deadline = Some(Instant::now() + END_WAIT_MAX);
        if let Ok(pidfd) = process::pidfd(self.child.id()) {
            // It ends in a moment; if not, there is nothing to tell.
            let _waited = process::wait_ready(&mut [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)], deadline);
        }
        match self.child.try_wait() {
            Ok(Some(status)) => format!("the worker ended without a word ({status}); its log is above"),
            _ => "the worker ended without a word; its log is above".to_owned(),
        }
    }
}

impl Drop for Oracle {
    fn drop(&mut self) {
        if self.questions.take().is_some() {
            // Given up in the middle: it may be computing.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Replies as they come, and when there will be no more; one at a time is enough, as no question is asked before the last is answered.
fn listen(output: ChildStdout) -> (Receiver<io::Result<Heard>>, Receiver<()>) {
    let (sender, receiver) = bounded(1);
    let (alive, ended) = bounded::<()>(0);
    std::thread::spawn(move || {
        let _alive = alive;
        let mut output = BufReader::new(output);
        while let Some(heard) = hear(&mut output).transpose() {
            let last = heard.is_err();
            if sender.send(heard).is_err() || last {
                return;
            }
        }
    });
    (receiver, ended)
}

fn hear(output: &mut BufReader<ChildStdout>) -> io::Result<Option<Heard>> {
    let Some(reply) = get::<Reply>(output)? else { return Ok(None) };
    let (mut numbers, mut status) = (Vec::new(), Vec::new());
    if let Reply::Told { rows, numbers: each } = reply {
        numbers = get_numbers(output, rows.saturating_mul(each))?;
        status = get_bytes(output, rows)?;
    }
    Ok(Some(Heard { reply, numbers, status }))
}

fn pipe(error: io::Error) -> Error {
    Error::Worker(format!("the pipe to the worker: {error}"))
}
