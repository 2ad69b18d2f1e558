//! A worker that predicts what it is asked (`enn_common::wire::serve`): loaded once, then a question at a time.

use crate::{
    Error,
    agent::{PipeError, Piped, WorkerSpec, device},
};
use crossbeam_channel::Receiver;
use enn_common::{
    config::train::Precision,
    wire::{
        message::PROTOCOL,
        serve::{Begin, Question, Reply, get, get_bytes, get_numbers},
    },
};
use std::{
    io::{self, BufReader},
    path::{Path, PathBuf},
    process::ChildStdout,
    time::Duration,
};

/// The worker.
pub(super) struct Oracle {
    worker: Piped<Heard>,
    /// Numbers that a stream carries; 0 without streams.
    state: usize,
}

/// The answers row by row, and what became of each row.
pub(super) type Told = (Vec<f32>, Vec<u8>);

/// A reply with what follows it.
struct Heard {
    reply: Reply,
    numbers: Vec<f32>,
    status: Vec<u8>,
}

/// Whose the directory of temporary files is.
#[derive(Debug, Clone, Copy)]
pub(super) enum Scratch<'a> {
    /// The worker's: it goes when the worker ends.
    Own(&'a Path),
    /// Others', too.
    Shared(&'a Path),
}

impl Oracle {
    /// Starts a worker and waits until the model is loaded; `stream`: its rows will be those of streams, too.
    pub(super) fn start(
        worker: &WorkerSpec,
        checkpoint: &Path,
        (precision, stream): (Precision, bool),
        scratch: Scratch<'_>,
    ) -> Result<Self, Error> {
        let (dir, scratch) = match scratch {
            Scratch::Own(dir) => (dir, Some(dir.to_owned())),
            Scratch::Shared(dir) => (dir, None),
        };
        let piped = Piped::start_heard(worker, "--serve", dir, hear).map_err(|error| match error {
            PipeError::Start(source) => Error::Read { path: worker.program.clone(), source },
            other => told(other),
        })?;
        let mut oracle = Self { worker: piped, state: 0 };
        let checkpoint = checkpoint.to_owned();
        let threads = worker.threads;
        let device = device(worker);
        oracle.say(&Begin { protocol: PROTOCOL, checkpoint, device, threads, precision, scratch, stream })?;
        match oracle.hear()?.reply {
            Reply::Ready if !stream => Ok(oracle),
            Reply::Streaming { state } if stream => Ok(Self { state: state as usize, ..oracle }),
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
    pub(super) fn tell(&mut self, x: &[f32], rows: usize) -> Result<Told, Error> {
        self.say(&Question::Rows { rows: rows as u64 })?;
        self.add(x)?;
        match self.hear()? {
            Heard { reply: Reply::Told { rows: told, .. }, numbers, status } if told == rows as u64 => {
                Ok((numbers, status))
            }
            Heard { reply, .. } => Err(Error::Worker(format!("the worker said {reply:?} instead of {rows} answers"))),
        }
    }

    /// Numbers that a stream carries; 0 without streams.
    pub(super) const fn state(&self) -> usize {
        self.state
    }

    /// Longest wait for an answer from now on.
    pub(super) fn set_wait(&mut self, wait: Duration) {
        self.worker.set_wait(wait);
    }

    /// The same of the next rows of streams, whose states (rows, numbers) are given: the answers with what became of each, and the states
    /// after them.
    pub(super) fn carry(&mut self, x: &[f32], states: &[f32], rows: usize) -> Result<(Told, Vec<f32>), Error> {
        self.say(&Question::Stream { rows: rows as u64 })?;
        self.add(x)?;
        self.add(states)?;
        match self.hear()? {
            Heard { reply: Reply::Carried { rows: told, numbers: each, state }, mut numbers, status }
                if told == rows as u64 && state == self.state as u64 =>
            {
                let after = numbers.split_off(rows * each as usize);
                Ok(((numbers, status), after))
            }
            Heard { reply, .. } => Err(Error::Worker(format!("the worker said {reply:?} instead of {rows} answers"))),
        }
    }

    fn add(&mut self, numbers: &[f32]) -> Result<(), Error> {
        match self.worker.add(numbers) {
            Err(error) => Err(self.last_words(error)),
            Ok(()) => Ok(()),
        }
    }

    /// Of a worker that takes nothing more: one that has ended says why, one that is stuck says nothing.
    fn last_words(&mut self, error: PipeError) -> Error {
        match error {
            PipeError::Late(_) => told(error),
            error => self.hear().err().unwrap_or_else(|| told(error)),
        }
    }

    /// Is disconnected once the worker has ended.
    pub(super) fn ended(&self) -> &Receiver<()> {
        self.worker.ended()
    }

    /// Lets the worker end.
    pub(super) fn end(self) -> Result<(), Error> {
        self.worker.end().map_err(told)
    }

    fn say<T: serde::Serialize>(&mut self, line: &T) -> Result<(), Error> {
        match self.worker.say(line) {
            Err(error) => Err(self.last_words(error)),
            Ok(()) => Ok(()),
        }
    }

    /// The next reply that is no warning.
    fn hear(&mut self) -> Result<Heard, Error> {
        loop {
            match self.worker.hear().map_err(told)? {
                Heard { reply: Reply::Warned { message }, .. } => tracing::warn!("{message}"),
                Heard { reply: Reply::Failed { error }, .. } => return Err(Error::Worker(error)),
                heard => return Ok(heard),
            }
        }
    }
}

fn told(error: PipeError) -> Error {
    match error {
        PipeError::Late(time) => Error::Late(time),
        other => Error::Worker(other.to_string()),
    }
}

fn hear(output: &mut BufReader<ChildStdout>) -> io::Result<Option<Heard>> {
    let Some(reply) = get::<Reply>(output)? else { return Ok(None) };
    let mut numbers = Vec::new();
    let mut status = Vec::new();
    let follows = match reply {
        Reply::Told { rows, numbers } => Some((rows, numbers)),
        Reply::Carried { rows, numbers, state } => Some((rows, numbers.saturating_add(state))),
        _ => None,
    };
    if let Some((rows, each)) = follows {
        numbers = get_numbers(output, rows.saturating_mul(each))?;
        status = get_bytes(output, rows)?;
    }
    Ok(Some(Heard { reply, numbers, status }))
}
