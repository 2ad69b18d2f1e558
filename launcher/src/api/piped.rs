//! A worker that is asked over pipes: a line of JSON each way (`enn_common::wire::{serve, engine}`), a question at a time.
//!
//! **Invariant:** every wait for it has an end; it ends with its input, so that it never outlives who asks.

use crate::agent::WorkerSpec;
use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
use enn_common::{
    config::train::Device,
    wire::serve::{get, put},
};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    io::{self, BufReader},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};

/// Longest time to load libtorch and the model, and to answer one question.
const REPLY_WAIT_MAX: Duration = Duration::from_secs(600);

/// Why a worker does not answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum PipeError {
    #[error("{0}")]
    Start(#[source] io::Error),
    #[error("the pipe to the worker: {0}")]
    Pipe(#[source] io::Error),
    #[error("no answer within {} s", REPLY_WAIT_MAX.as_secs())]
    Late,
    #[error("the worker ended without a word; its log is above")]
    Silent,
    #[error("the worker does not end")]
    Endless,
}

/// The worker.
#[derive(Debug)]
pub(super) struct Piped<R> {
    child: Child,
    /// `None` once the worker was told to end.
    questions: Option<ChildStdin>,
    replies: Receiver<io::Result<R>>,
}

impl<R: DeserializeOwned + Send + 'static> Piped<R> {
    /// Starts a worker in the mode of `flag`; its temporary files go into `scratch`.
    pub(super) fn start(worker: &WorkerSpec, flag: &str, scratch: &Path) -> Result<Self, PipeError> {
        let mut command = Command::new(&worker.program);
        command.arg(flag).stdin(Stdio::piped()).stdout(Stdio::piped());
        // A Ctrl-C is for enn alone: the worker ends with its input, and clears up.
        command.process_group(0);
        command.env("OMP_NUM_THREADS", worker.threads.to_string()).env("TMPDIR", scratch);
        if let Some(path) = worker.libraries() {
            command.env("LD_LIBRARY_PATH", path);
        }
        let mut child = command.spawn().map_err(PipeError::Start)?;
        let (questions, replies) = (child.stdin.take(), child.stdout.take().map(listen));
        let replies = replies.ok_or_else(|| PipeError::Start(io::ErrorKind::BrokenPipe.into()))?;
        Ok(Self { child, questions, replies })
    }

    /// Sends a line. When it cannot be sent the worker has ended: what it said last, if anything, is still to be heard.
    pub(super) fn say<T: Serialize>(&mut self, line: &T) -> Result<(), PipeError> {
        let broken = || PipeError::Pipe(io::ErrorKind::BrokenPipe.into());
        put(self.questions.as_mut().ok_or_else(broken)?, line).map_err(PipeError::Pipe)
    }

    /// The next reply.
    pub(super) fn hear(&mut self) -> Result<R, PipeError> {
        match self.replies.recv_timeout(REPLY_WAIT_MAX) {
            Ok(reply) => reply.map_err(PipeError::Pipe),
            Err(RecvTimeoutError::Timeout) => Err(PipeError::Late),
            Err(RecvTimeoutError::Disconnected) => Err(PipeError::Silent),
        }
    }

    /// Lets the worker end.
    pub(super) fn end(mut self) -> Result<(), PipeError> {
        drop(self.questions.take());
        match self.replies.recv_timeout(REPLY_WAIT_MAX) {
            // It has closed its output, and is about to end.
            Err(RecvTimeoutError::Disconnected) => self.child.wait().map_err(PipeError::Pipe)?,
            _ => return Err(PipeError::Endless),
        };
        Ok(())
    }
}

impl<R> Drop for Piped<R> {
    fn drop(&mut self) {
        if self.questions.take().is_some() {
            // Given up in the middle: it may be computing.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Replies as they come; one at a time is enough, as no question is asked before the last is answered.
fn listen<R: DeserializeOwned + Send + 'static>(output: ChildStdout) -> Receiver<io::Result<R>> {
    let (sender, receiver) = bounded(1);
    std::thread::spawn(move || {
        let mut output = BufReader::new(output);
        while let Some(reply) = get(&mut output).transpose() {
            let last = reply.is_err();
            if sender.send(reply).is_err() || last {
                return;
            }
        }
    });
    receiver
}

/// The device as the worker calls it.
pub(super) fn device(worker: &WorkerSpec) -> String {
    if worker.device == Device::Cuda { "cuda" } else { "cpu" }.to_owned()
}
