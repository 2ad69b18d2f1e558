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
};

/// The worker.
pub(super) struct Oracle(Piped<Heard>);

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
    /// Starts a worker and waits until the model is loaded.
    pub(super) fn start(
        worker: &WorkerSpec,
        checkpoint: &Path,
        precision: Precision,
        scratch: Scratch<'_>,
    ) -> Result<Self, Error> {
        let (dir, scratch) = match scratch {
            Scratch::Own(dir) => (dir, Some(dir.to_owned())),
            Scratch::Shared(dir) => (dir, None),
        };
        let mut oracle = Self(Piped::start_heard(worker, "--serve", dir, hear).map_err(|error| match error {
            PipeError::Start(source) => Error::Read { path: worker.program.clone(), source },
            other => told(other),
        })?);
        let (checkpoint, threads) = (checkpoint.to_owned(), worker.threads);
        oracle.say(&Begin { protocol: PROTOCOL, checkpoint, device: device(worker), threads, precision, scratch })?;
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
        if let Err(error) = self.0.add(x) {
            return Err(self.hear().err().unwrap_or_else(|| told(error)));
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
        self.0.ended()
    }

    /// Lets the worker end.
    pub(super) fn end(self) -> Result<(), Error> {
        self.0.end().map_err(told)
    }

    fn say<T: serde::Serialize>(&mut self, line: &T) -> Result<(), Error> {
        match self.0.say(line) {
            // It has ended: its last words say why.
            Err(error) => Err(self.hear().err().unwrap_or_else(|| told(error))),
            Ok(()) => Ok(()),
        }
    }

    /// The next reply that is no warning.
    fn hear(&mut self) -> Result<Heard, Error> {
        loop {
            match self.0.hear().map_err(told)? {
                Heard { reply: Reply::Warned { message }, .. } => tracing::warn!("{message}"),
                Heard { reply: Reply::Failed { error }, .. } => return Err(Error::Worker(error)),
                heard => return Ok(heard),
            }
        }
    }
}

fn told(error: PipeError) -> Error {
    Error::Worker(error.to_string())
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
