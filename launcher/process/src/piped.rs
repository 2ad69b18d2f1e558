//! A worker that is asked over pipes: a line of JSON each way (`enn_common::wire::{serve, engine}`), a question at a time.
//!
//! **Invariant:** every wait for it has an end; it ends with its input, so that it never outlives who asks.

use crate::{WorkerSpec, pidfd, wait_ready};
use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
use enn_common::{
    secrets,
    wire::serve::{get, put, put_numbers},
};
use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    poll::{PollFd, PollFlags},
};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    io::{self, BufReader, Write},
    os::{fd::AsFd, unix::process::CommandExt},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Stdio},
    time::{Duration, Instant},
};

/// Longest time to load libtorch and the model, and to answer one question where nothing shorter is asked for.
const REPLY_WAIT_MAX: Duration = Duration::from_secs(600);

/// Longest time between the end of a worker's output and its own.
const END_WAIT_MAX: Duration = Duration::from_secs(1);

/// Why a worker does not answer.
#[derive(Debug, thiserror::Error)]
pub enum PipeError {
    #[error("{0}")]
    Start(#[source] io::Error),
    #[error("the pipe to the worker: {0}")]
    Pipe(#[source] io::Error),
    #[error("no answer within {} s", .0.as_secs())]
    Late(Duration),
    #[error("the worker ended without a word{0}; its log is above")]
    Silent(String),
    #[error("the worker ended within an answer{0}; its log is above")]
    Cut(String),
    #[error("the worker does not end")]
    Endless,
}

/// The worker.
#[derive(Debug)]
pub struct Piped<R> {
    child: Child,
    /// `None` once the worker was told to end.
    questions: Option<ChildStdin>,
    replies: Receiver<io::Result<R>>,
    ended: Receiver<()>,
    /// Longest wait for a reply, and for a question to be taken.
    wait: Duration,
}

/// Reads a reply; `None` at the end.
type Read<R> = fn(&mut BufReader<ChildStdout>) -> io::Result<Option<R>>;

impl<R: DeserializeOwned + Send + 'static> Piped<R> {
    /// Starts a worker in the mode of `flag`; its temporary files go into `scratch`.
    pub fn start(worker: &WorkerSpec, flag: &str, scratch: &Path) -> Result<Self, PipeError> {
        Self::start_reading(worker, flag, scratch, get)
    }
}

impl<R: Send + 'static> Piped<R> {
    /// [`Piped::start`], of a worker whose replies are read by `read`.
    pub fn start_reading(worker: &WorkerSpec, flag: &str, scratch: &Path, read: Read<R>) -> Result<Self, PipeError> {
        let mut command = secrets::command(&worker.program);
        command.arg(flag).stdin(Stdio::piped()).stdout(Stdio::piped());
        // A Ctrl-C is for enn alone: the worker ends with its input, and clears up.
        command.process_group(0);
        command.envs(worker.openmp()).env("TMPDIR", scratch);
        if let Some(path) = worker.libraries() {
            command.env("LD_LIBRARY_PATH", path);
        }
        let mut child = command.spawn().map_err(PipeError::Start)?;
        let questions = child.stdin.take();
        let replies = child.stdout.take().map(|output| listen(output, read));
        let (replies, ended) = replies.ok_or_else(|| PipeError::Start(io::ErrorKind::BrokenPipe.into()))?;
        // One that takes nothing must not hold up who asks.
        let kept = questions.as_ref().map_or(Ok(0), |pipe| fcntl(pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)));
        kept.map_err(|errno| PipeError::Start(errno.into()))?;
        Ok(Self { child, questions, replies, ended, wait: REPLY_WAIT_MAX })
    }

    /// From now on no reply is waited for longer.
    pub fn set_wait(&mut self, wait: Duration) {
        self.wait = wait;
    }

    /// Sends a line. When it cannot be sent the worker has ended: what it said last, if anything, is still to be heard.
    pub fn say<T: Serialize>(&mut self, line: &T) -> Result<(), PipeError> {
        self.write(|pipe| put(pipe, line))
    }

    /// Sends numbers that belong to the last line.
    pub fn add(&mut self, numbers: &[f32]) -> Result<(), PipeError> {
        self.write(|pipe| put_numbers(pipe, numbers, &[]))
    }

    fn write(&mut self, what: impl FnOnce(&mut Patient<'_>) -> io::Result<()>) -> Result<(), PipeError> {
        let wait = self.wait;
        let pipe = self.questions.as_mut().ok_or_else(|| PipeError::Pipe(io::ErrorKind::BrokenPipe.into()))?;
        what(&mut Patient { pipe, until: Instant::now() + wait }).map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => PipeError::Late(wait),
            _ => PipeError::Pipe(error),
        })
    }

    /// Is disconnected once the worker has closed its output.
    pub fn ended(&self) -> &Receiver<()> {
        &self.ended
    }

    pub fn receive(&mut self) -> Result<R, PipeError> {
        match self.replies.recv_timeout(self.wait) {
            Ok(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => Err(PipeError::Cut(self.status())),
            Ok(reply) => reply.map_err(PipeError::Pipe),
            Err(RecvTimeoutError::Timeout) => Err(PipeError::Late(self.wait)),
            Err(RecvTimeoutError::Disconnected) => Err(PipeError::Silent(self.status())),
        }
    }

    /// Lets the worker end.
    pub fn end(mut self) -> Result<(), PipeError> {
        drop(self.questions.take());
        match self.replies.recv_timeout(self.wait) {
            // It has closed its output, and is about to end.
            Err(RecvTimeoutError::Disconnected) => self.child.wait().map_err(PipeError::Pipe)?,
            _ => return Err(PipeError::Endless),
        };
        Ok(())
    }
}

impl<R> Piped<R> {
    /// Returns how a worker ended that has closed its output, in brackets; empty when it has not.
    fn status(&mut self) -> String {
        let deadline = Some(Instant::now() + END_WAIT_MAX);
        if let Ok(pidfd) = pidfd(self.child.id()) {
            // It ends in a moment; if not, there is nothing to tell.
            let _waited = wait_ready(&mut [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)], deadline);
        }
        self.child.try_wait().ok().flatten().map_or(String::new(), |status| format!(" ({status})"))
    }
}

impl<R> Drop for Piped<R> {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            // Given up in the middle: it may be computing.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// The pipe to a worker, which may have stopped reading.
struct Patient<'a> {
    pipe: &'a mut ChildStdin,
    until: Instant,
}

impl Write for Patient<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.pipe.write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
            if Instant::now() >= self.until {
                return Err(io::ErrorKind::TimedOut.into());
            }
            wait_ready(&mut [PollFd::new(self.pipe.as_fd(), PollFlags::POLLOUT)], Some(self.until))?;
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.pipe.flush()
    }
}

/// Replies as they come, and when there will be no more. One at a time is enough, as no question is asked before the last is answered.
fn listen<R: Send + 'static>(output: ChildStdout, read: Read<R>) -> (Receiver<io::Result<R>>, Receiver<()>) {
    let (sender, receiver) = bounded(1);
    let (alive, ended) = bounded::<()>(0);
    std::thread::spawn(move || {
        let _alive = alive;
        let mut output = BufReader::new(output);
        while let Some(reply) = read(&mut output).transpose() {
            let last = reply.is_err();
            if sender.send(reply).is_err() || last {
                return;
            }
        }
    });
    (receiver, ended)
}
